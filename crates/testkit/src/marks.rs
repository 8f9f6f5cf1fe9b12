//! The marks by which text says which run it belongs to and where it stands there: `«NAME:NUMBER»`.

/// The first mark.
#[must_use]
pub fn first(text: &str) -> Option<(&str, u64)> {
    all(text).next()
}

/// All marks, in order. What looks like one and is none is passed over.
pub fn all(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.split('«').skip(1).filter_map(|rest| {
        let (mark, _) = rest.split_once('»')?;
        let (name, number) = mark.rsplit_once(':')?;
        Some((name, number.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_in_order() {
        let text = "«r1:0» é «r1:1»«x» «:» «r2:17» «r1:2";
        assert_eq!(all(text).collect::<Vec<_>>(), [("r1", 0), ("r1", 1), ("r2", 17)]);
        assert_eq!(first("nothing"), None);
    }
}
