//! Input as a file.

use std::path::Path;

/// Calls `read` on a file with this content.
pub fn with<T>(data: &[u8], read: impl FnOnce(&Path) -> T) -> T {
    let path = std::env::temp_dir().join(format!("weince-fuzz-{}", std::process::id()));
    std::fs::write(&path, data).expect("a temporary file can be written");
    read(&path)
}

/// A zip archive with `pickle` as `a/data.pkl` and 64 bytes of storage, whose checksums are right.
#[allow(dead_code)]
pub fn archive(pickle: &[u8]) -> Vec<u8> {
    let entries: [(&str, &[u8]); 2] = [("a/data.pkl", pickle), ("a/data/0", &[1; 64])];
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, data) in entries {
        let at = out.len() as u32;
        let mut common = vec![0; 2 + 2 + 4];
        common.extend(crc32(data).to_le_bytes());
        common.extend([data.len() as u32; 2].map(u32::to_le_bytes).concat());
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0; 2]);
        out.extend(b"PK\x03\x04\x14\x00");
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(data);
        directory.extend(b"PK\x01\x02\x14\x00\x14\x00");
        directory.extend(&common);
        directory.extend([0; 10]);
        directory.extend(at.to_le_bytes());
        directory.extend(name.as_bytes());
    }
    let at = out.len() as u32;
    out.extend(&directory);
    out.extend(b"PK\x05\x06\0\0\0\0\x02\0\x02\0");
    out.extend((directory.len() as u32).to_le_bytes());
    out.extend(at.to_le_bytes());
    out.extend([0; 2]);
    out
}

fn crc32(data: &[u8]) -> u32 {
    let byte = |crc: u32, b: &u8| (0..8).fold(crc ^ u32::from(*b), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 });
    !data.iter().fold(!0, byte)
}
