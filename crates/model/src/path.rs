//! Names in addresses: whatever a name is made of, it stays one segment of a path, or one value of a query.

/// A name as one segment of a path, or one value of a query. `.` and `..` come out as they are.
#[must_use]
pub fn path_segment(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_segment_of_a_path() {
        assert_eq!(path_segment("my-cell"), "my-cell");
        assert_eq!(path_segment("a/b?c\r\né%"), "a%2Fb%3Fc%0D%0A%C3%A9%25");
    }
}
