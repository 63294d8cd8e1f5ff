//! The process whose XDP program is attached to a device.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Returns the name and the ID of the process that holds the link of the XDP program on the device `index` of this thread's
/// network namespace. `None` if no process does, or if this user may not see it.
pub(super) fn holder(index: u32) -> Option<(String, u32)> {
    let here = netns(Path::new("/proc/thread-self"))?;
    let numbers = fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let pid = numbers.into_iter().find(|pid| {
        let process = Path::new("/proc").join(pid.to_string());
        holds_link(&process, index) && is_in(&process, here)
    })?;
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((abey_text::visible(name.trim_end_matches('\n')).into_owned(), pid))
}

fn netns(process: &Path) -> Option<u64> {
    Some(fs::metadata(process.join("ns/net")).ok()?.ino())
}

/// Returns whether a thread of the process is in the network namespace. The namespaces of its threads may differ.
fn is_in(process: &Path, namespace: u64) -> bool {
    let threads = fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    threads.into_iter().any(|thread| netns(&thread.path()) == Some(namespace))
}

fn holds_link(process: &Path, index: u32) -> bool {
    let fds = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    fds.into_iter().any(|fd| {
        let is_link = fs::read_link(fd.path()).is_ok_and(|target| target.to_str() == Some("anon_inode:bpf_link"));
        is_link && {
            let about = fs::read_to_string(process.join("fdinfo").join(fd.file_name())).unwrap_or_default();
            is_xdp_of(&about, index)
        }
    })
}

/// Returns whether the text of a link's `fdinfo` is that of an XDP program on the device `index`.
fn is_xdp_of(text: &str, index: u32) -> bool {
    let value = |key: &str| {
        let mut fields = text.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(found, _)| *found == key).map(|(_, value)| value.trim().to_owned())
    };
    value("link_type").as_deref() == Some("xdp") && value("ifindex") == Some(index.to_string())
}

#[cfg(test)]
mod tests {
    use super::is_xdp_of;

    #[test]
    fn a_link_of_another_device_or_kind_is_no_xdp_program_of_this_one() {
        let text =
            "pos:\t0\nflags:\t02000000\nlink_type:\txdp\nlink_id:\t7\nprog_tag:\t1a2b\nprog_id:\t40\nifindex:\t3\n";
        assert!(is_xdp_of(text, 3));
        assert!(!is_xdp_of(text, 33));
        assert!(!is_xdp_of(&text.replace("xdp", "netns"), 3));
        assert!(!is_xdp_of("", 3));
    }
}
