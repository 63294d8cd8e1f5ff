//! The ELF object that loaders take: programs, maps, and the relocations of programs that use maps.

use object::write::{Object, Relocation, SectionId, Symbol, SymbolSection};
use object::{Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind};
use object::{SymbolFlags, SymbolKind, SymbolScope, elf};

use crate::Assembled;

/// A program of an object.
#[derive(Clone, Debug)]
pub struct Program {
    /// Name in the object.
    pub name: &'static str,
    /// Section, which tells the loader the type of the program: `xdp`, `raw_tp/NAME`. No two programs share one.
    pub section: &'static str,
    /// Instructions. The maps they name are maps of the object.
    pub code: Assembled,
}

/// A map of an object.
#[derive(Clone, Copy, Debug)]
pub struct Map {
    /// Name in the object.
    pub name: &'static str,
    /// Map type, one of [`abi`](crate::abi)'s `MAP_TYPE_*`.
    pub kind: u32,
    /// Length of a key in bytes.
    pub key_bytes: u32,
    /// Length of a value in bytes.
    pub value_bytes: u32,
    /// Maximum number of entries.
    pub entries: u32,
    /// Flags of its creation.
    pub flags: u32,
}

/// Returns programs and their maps as an ELF object, as a C compiler would write it.
///
/// # Panics
/// When a program names a map that is not in `maps`.
pub fn object_file(programs: &[Program], maps: &[Map]) -> Vec<u8> {
    let endian = if cfg!(target_endian = "little") { Endianness::Little } else { Endianness::Big };
    let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, endian);
    let license = object.add_section(Vec::new(), b"license".to_vec(), SectionKind::Data);
    object.append_section_data(license, b"Dual MIT/GPL\0", 1);

    let section = object.add_section(Vec::new(), b"maps".to_vec(), SectionKind::Data);
    let mut symbols = Vec::new();
    for map in maps {
        let definition = [map.kind, map.key_bytes, map.value_bytes, map.entries, map.flags];
        let bytes = definition.map(u32::to_ne_bytes).concat();
        let value = object.append_section_data(section, &bytes, 4);
        symbols.push((map.name, object.add_symbol(symbol(map.name, value, bytes.len(), SymbolKind::Data, section))));
    }
    for Program { name, section, code } in programs {
        let text = object.add_section(Vec::new(), section.as_bytes().to_vec(), SectionKind::Text);
        let value = object.append_section_data(text, &code.code, 8);
        object.add_symbol(symbol(name, value, code.code.len(), SymbolKind::Text, text));
        for (offset, named) in &code.maps {
            let (_, symbol) = *symbols.iter().find(|(map, _)| map == named).expect("a map of the object");
            let flags = RelocationFlags::Elf { r_type: elf::R_BPF_64_64 };
            let relocation = Relocation { offset: *offset, symbol, addend: 0, flags };
            object.add_relocation(text, relocation).expect("a relocation that ELF has");
        }
    }
    object.write().expect("an object that ELF has")
}

fn symbol(name: &str, value: u64, size: usize, kind: SymbolKind, section: SectionId) -> Symbol {
    Symbol {
        name: name.as_bytes().to_vec(),
        value,
        size: size as u64,
        kind,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(section),
        flags: SymbolFlags::None,
    }
}
