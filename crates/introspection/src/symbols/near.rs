//! Which name somebody may have meant who misspelt one.

/// The most characters that are wrong in a misspelt name.
const MOST: usize = 2;

/// The name that is nearest to `wanted`, at most two insertions, deletions or substitutions away
/// and at most half of its characters; of several the first one.
pub(crate) fn nearest<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut best: Option<(usize, &str)> = None;
    for name in names {
        let least = best.map_or(MOST + 1, |(distance, _)| distance);
        let distance = distance(wanted.as_bytes(), name.as_bytes(), least);
        if distance > 0 && distance < least && 2 * distance <= wanted.len() {
            best = Some((distance, name));
        }
    }
    best.map(|(_, name)| name)
}

/// The Levenshtein distance, or `limit` if it is not below that.
fn distance(a: &[u8], b: &[u8], limit: usize) -> usize {
    if a.len().abs_diff(b.len()) >= limit {
        return limit;
    }
    // One row of the table: the distances between the beginning of `a` and those of `b`.
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (n, x) in (1..).zip(a) {
        let mut diagonal = n - 1;
        let mut left = n;
        let mut least = n;
        for (cell, y) in row.iter_mut().skip(1).zip(b) {
            let found = (diagonal + usize::from(x != y)).min(left + 1).min(*cell + 1);
            (diagonal, left, least) = (*cell, found, least.min(found));
            *cell = found;
        }
        // Rows never become smaller, so most names end here.
        if least >= limit {
            return limit;
        }
        if let Some(first) = row.first_mut() {
            *first = n;
        }
    }
    row.last().copied().unwrap_or(limit).min(limit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn published_distances() {
        // Wagner and Fischer's usual examples.
        for (a, b, expected) in [
            ("kitten", "sitting", 3),
            ("saturday", "sunday", 3),
            ("", "abc", 3),
            ("flaw", "lawn", 2),
        ] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes(), 9), expected, "{a} {b}");
            assert_eq!(distance(a.as_bytes(), b.as_bytes(), 2), 2, "{a} {b}");
        }
    }

    #[test]
    fn a_name_that_is_near_enough() {
        let near = |wanted| nearest(wanted, ["sleep", "msleep", "exit", "vTaskDelay"].into_iter());
        assert_eq!(near("mslep"), Some("msleep"));
        assert_eq!(near("vTaskDely"), Some("vTaskDelay"));
        assert_eq!(near("vTaskDelay_X_"), None, "three characters");
        assert_eq!(near("ex"), None, "another name altogether");
    }

    proptest! {
        /// By the definition, without a table.
        #[test]
        fn it_is_the_least_number_of_changes(a in "[ab]{0,5}", b in "[ab]{0,5}", limit in 1usize..7) {
            fn slowly(a: &[u8], b: &[u8]) -> usize {
                match (a, b) {
                    ([], rest) | (rest, []) => rest.len(),
                    ([x, a_rest @ ..], [y, b_rest @ ..]) => {
                        let changed = slowly(a_rest, b_rest) + usize::from(x != y);
                        changed.min(slowly(a_rest, b) + 1).min(slowly(a, b_rest) + 1)
                    }
                }
            }
            let (a, b) = (a.as_bytes(), b.as_bytes());
            prop_assert_eq!(distance(a, b, limit), slowly(a, b).min(limit));
        }
    }
}
