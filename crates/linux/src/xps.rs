//! CPU masks in the format of `/sys`, for XPS: the CPUs that use a transmit queue (Linux
//! `Documentation/networking/scaling.rst`).

use crate::cpu::CpuList;

/// Bits in one group of a mask.
const GROUP: u32 = 32;

/// Returns a mask in hexadecimal digits, groups of eight from the highest CPU down: `1,00000003` is CPUs 0, 1 and 32.
pub(crate) fn to_mask(cpus: &CpuList) -> String {
    let mut groups = vec![0_u32; 1];
    for cpu in cpus.iter() {
        let index = (cpu / GROUP) as usize;
        groups.resize(groups.len().max(index + 1), 0);
        groups[index] |= 1 << (cpu % GROUP);
    }
    let digits: Vec<String> = groups.iter().rev().map(|group| format!("{group:08x}")).collect();
    digits.join(",")
}

/// Parses such a mask; `None` for other text.
pub(crate) fn parse_mask(text: &str) -> Option<CpuList> {
    let mut cpus = Vec::new();
    for (index, digits) in (0_u32..).zip(text.trim().rsplit(',')) {
        let group = u32::from_str_radix(digits, 16).ok()?;
        cpus.extend((0..GROUP).filter(|bit| group & (1 << bit) != 0).map(|bit| index * GROUP + bit));
    }
    Some(cpus.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn masks_are_read_as_the_kernel_writes_them() {
        for (text, cpus) in
            [("0", ""), ("3", "0-1"), ("00000000,00000000", ""), ("1,00000003\n", "0-1,32"), ("ff", "0-7")]
        {
            assert_eq!(parse_mask(text).expect(text), cpus.parse().expect(cpus), "{text:?}");
        }
        for text in ["", "x", "1,,2", "100000000"] {
            assert_eq!(parse_mask(text), None, "{text:?}");
        }
        assert_eq!(to_mask(&"0-1,32".parse().expect("CPUs")), "00000001,00000003");
        assert_eq!(to_mask(&CpuList::default()), "00000000");
    }

    proptest! {
        #[test]
        fn writing_and_reading_are_inverse(cpus in proptest::collection::btree_set(0_u32..600, 0..40)) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(parse_mask(&to_mask(&list)), Some(list));
        }
    }
}
