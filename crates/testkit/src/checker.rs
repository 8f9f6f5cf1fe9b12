//! The independent judge of what clients saw: it knows what the upstream was made to say, takes each client's view of it, and says what is
//! missing, what came twice, what came in the wrong order, and whether the end came once.
//!
//! It reads marks and numbers and nothing else, and shares no code with any program that it judges.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::AddAssign;

use crate::marks;

/// What the upstream was made to say in one run.
#[derive(Clone, Debug)]
pub struct Sent {
    /// What its marks call it.
    pub run: String,
    /// The text of each piece, in order; each begins with its mark.
    pub pieces: Vec<String>,
    /// Something happened to it after which the upstream itself could not give back what was missed.
    pub may_have_gaps: bool,
    /// The numbers of pieces that were had all the same: nothing excuses that one of these is missing.
    pub had: BTreeSet<u64>,
}

/// What one client had of a run in the end.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Who it is, for messages.
    pub client: String,
    /// All the text, in the order in which it is shown.
    pub text: String,
    /// Numbers that were to be consecutive, in the order of their coming: a list for each thing that counts anew.
    pub numbers: BTreeMap<String, Vec<u64>>,
    /// How often the end was told.
    pub ends: u64,
    /// The client was away when the end was told, and found the run ended when it came back.
    pub found_ended: bool,
    /// The run is said not to have ended well, or to lack something.
    pub said_incomplete: bool,
    /// The run is said to have ended as it should.
    pub ended_well: bool,
    /// How the run ended, in the client's words.
    pub outcome: String,
}

/// What is wrong with one view, or with many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Pieces or numbers that did not come.
    pub lost: u64,
    /// Pieces or numbers that came again.
    pub duplicated: u64,
    /// Pieces or numbers that came after later ones.
    pub reordered: u64,
    /// Pieces of other runs.
    pub foreign: u64,
    /// Text that is not what was sent, although every mark is in its place.
    pub garbled: u64,
    /// Ends that did not come.
    pub ends_missing: u64,
    /// Ends that came again.
    pub ends_doubled: u64,
    /// Ends that are no success, of runs that were one.
    pub ends_wrong: u64,
    /// Pieces that could not be had from the upstream any more, where the client was told so. No fault.
    pub gaps_said: u64,
    /// Pieces that could not be had from the upstream any more, where the client was not told so.
    pub gaps_silent: u64,
    /// Pieces that did come.
    pub delivered: u64,
}

impl Findings {
    /// Whether nothing is wrong.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        let Self { lost, duplicated, reordered, foreign, garbled, ends_missing, ends_doubled, ends_wrong, gaps_silent, .. } = *self;
        lost + duplicated + reordered + foreign + garbled + ends_missing + ends_doubled + ends_wrong + gaps_silent == 0
    }
}

impl AddAssign for Findings {
    fn add_assign(&mut self, other: Self) {
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.reordered += other.reordered;
        self.foreign += other.foreign;
        self.garbled += other.garbled;
        self.ends_missing += other.ends_missing;
        self.ends_doubled += other.ends_doubled;
        self.ends_wrong += other.ends_wrong;
        self.gaps_said += other.gaps_said;
        self.gaps_silent += other.gaps_silent;
        self.delivered += other.delivered;
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            ("lost", self.lost),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("foreign", self.foreign),
            ("garbled", self.garbled),
            ("ends missing", self.ends_missing),
            ("ends doubled", self.ends_doubled),
            ("ends wrong", self.ends_wrong),
            ("gaps said", self.gaps_said),
            ("gaps not said", self.gaps_silent),
            ("delivered", self.delivered),
        ];
        let found: Vec<String> = all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{name} {count}")).collect();
        f.write_str(&found.join(", "))
    }
}

/// What is wrong with a view of a run.
#[must_use]
pub fn judge(sent: &Sent, view: &View) -> Findings {
    let mut findings = Findings::default();
    let mut seen = Vec::new();
    for (run, number) in marks::all(&view.text) {
        if run == sent.run && number < sent.pieces.len() as u64 { seen.push(number) } else { findings.foreign += 1 }
    }
    let order = Order::of(&seen);
    findings.duplicated += order.duplicated;
    findings.reordered += order.reordered;
    findings.delivered = order.distinct.len() as u64;
    let not_there = |number: &u64| !order.distinct.contains(number);
    let missing = (0..sent.pieces.len() as u64).filter(not_there).count() as u64;
    let inexcusable = if sent.may_have_gaps { sent.had.iter().copied().filter(not_there).count() as u64 } else { 0 };
    findings.lost += inexcusable;
    let missing = missing - inexcusable;
    match (sent.may_have_gaps, view.said_incomplete) {
        (true, true) => findings.gaps_said = missing,
        (true, false) => findings.gaps_silent = missing,
        (false, _) => findings.lost += missing,
    }
    for numbers in view.numbers.values() {
        let order = Order::of(numbers);
        findings.duplicated += order.duplicated;
        findings.reordered += order.reordered;
        let (Some(first), Some(last)) = (order.distinct.first(), order.distinct.last()) else { continue };
        findings.lost += last - first + 1 - order.distinct.len() as u64;
    }
    if view.ends == 0 && !view.found_ended {
        findings.ends_missing = 1;
    } else if !sent.may_have_gaps && !view.ended_well {
        findings.ends_wrong = 1;
    }
    findings.ends_doubled = view.ends.saturating_sub(1);
    // Judged last: where something comes twice the text differs for that reason alone. A gap may leave words of its own behind, such as those
    // of a call that was never told to have ended.
    let expected: Vec<&str> =
        order.distinct.iter().filter_map(|number| sent.pieces.get(usize::try_from(*number).ok()?)).map(String::as_str).collect();
    let is_whole = match sent.may_have_gaps && (missing > 0 || view.said_incomplete) {
        true => expected.iter().all(|piece| view.text.contains(piece)),
        false => expected.concat() == view.text,
    };
    if findings.foreign == 0 && order.duplicated + order.reordered == 0 && !is_whole {
        findings.garbled = 1;
    }
    findings
}

/// What is wrong with the order of some numbers.
#[derive(Default)]
struct Order {
    distinct: BTreeSet<u64>,
    duplicated: u64,
    reordered: u64,
}

impl Order {
    fn of(numbers: &[u64]) -> Self {
        let mut order = Self::default();
        for number in numbers {
            let is_late = order.distinct.last().is_some_and(|last| last > number);
            if !order.distinct.insert(*number) {
                order.duplicated += 1;
            } else if is_late {
                order.reordered += 1;
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(n: u64) -> String {
        format!("«r:{n}» é漢🎉 ")
    }

    fn sent() -> Sent {
        Sent { run: "r".to_owned(), pieces: (0..6).map(piece).collect(), may_have_gaps: false, had: BTreeSet::new() }
    }

    fn view(pieces: &[u64]) -> View {
        let text = pieces.iter().map(|n| piece(*n)).collect();
        View { text, numbers: BTreeMap::from([("seq".to_owned(), vec![1, 2, 3, 4])]), ends: 1, ended_well: true, ..View::default() }
    }

    fn clean(delivered: u64) -> Findings {
        Findings { delivered, ..Findings::default() }
    }

    const ALL: [u64; 6] = [0, 1, 2, 3, 4, 5];

    #[test]
    fn what_is_whole_is_clean() {
        let findings = judge(&sent(), &view(&ALL));
        assert_eq!(findings, clean(6));
        assert!(findings.is_clean());
    }

    #[test]
    fn lost_pieces_are_found_wherever_they_were() {
        for (pieces, lost) in [(&ALL[1..], 1), (&ALL[..5], 1), (&[0, 1, 4, 5][..], 2), (&[][..], 6)] {
            let findings = judge(&sent(), &view(pieces));
            assert_eq!(findings, Findings { lost, ..clean(6 - lost) }, "{pieces:?}");
            assert!(!findings.is_clean());
        }
    }

    #[test]
    fn pieces_that_come_again_are_found() {
        for (pieces, duplicated) in [(vec![0, 1, 1, 2, 3, 4, 5], 1), (vec![0, 1, 2, 3, 4, 5, 0, 1], 2), (vec![0, 1, 2, 1, 2, 3, 4, 5], 2)] {
            let findings = judge(&sent(), &view(&pieces));
            assert_eq!(findings, Findings { duplicated, ..clean(6) }, "{pieces:?}");
            assert!(!findings.is_clean());
        }
    }

    #[test]
    fn pieces_out_of_order_are_found() {
        for (pieces, reordered) in [(vec![0, 2, 1, 3, 4, 5], 1), (vec![3, 4, 5, 0, 1, 2], 3), (vec![5, 4, 3, 2, 1, 0], 5)] {
            let findings = judge(&sent(), &view(&pieces));
            assert_eq!(findings, Findings { reordered, ..clean(6) }, "{pieces:?}");
            assert!(!findings.is_clean());
        }
    }

    #[test]
    fn pieces_of_other_runs_are_found() {
        let mut other = view(&ALL);
        other.text.push_str("«q:1» ");
        assert_eq!(judge(&sent(), &other), Findings { foreign: 1, ..clean(6) });
        // A number that was never sent is nobody's.
        let mut other = view(&ALL);
        other.text.push_str(&piece(6));
        assert_eq!(judge(&sent(), &other), Findings { foreign: 1, ..clean(6) });
        assert!(!judge(&sent(), &other).is_clean());
    }

    #[test]
    fn text_between_marks_counts() {
        for (from, to) in [("漢", "\u{fffd}"), ("🎉 «r:3»", "«r:3»"), ("é", "éé")] {
            let mut other = view(&ALL);
            other.text = other.text.replacen(from, to, 1);
            assert_eq!(judge(&sent(), &other), Findings { garbled: 1, ..clean(6) }, "{from}");
            assert!(!judge(&sent(), &other).is_clean());
        }
    }

    #[test]
    fn the_end_comes_once() {
        for (ends, found_ended, wrong) in [(1, false, (0, 0)), (0, false, (1, 0)), (0, true, (0, 0)), (1, true, (0, 0)), (3, false, (0, 2))]
        {
            let findings = judge(&sent(), &View { ends, found_ended, ..view(&ALL) });
            assert_eq!((findings.ends_missing, findings.ends_doubled), wrong);
            assert_eq!(findings.is_clean(), wrong == (0, 0));
        }
    }

    #[test]
    fn a_run_that_is_whole_ends_well() {
        let findings = judge(&sent(), &View { ended_well: false, ..view(&ALL) });
        assert_eq!(findings, Findings { ends_wrong: 1, ..clean(6) });
        assert!(!findings.is_clean());
        // Where something may be missing, an end that says so is right.
        assert!(judge(&Sent { may_have_gaps: true, ..sent() }, &View { ended_well: false, ..view(&ALL) }).is_clean());
    }

    #[test]
    fn numbers_are_consecutive() {
        for (numbers, wrong) in [
            (vec![7, 8, 9], (0, 0, 0)),
            (vec![], (0, 0, 0)),
            (vec![1, 2, 4], (1, 0, 0)),
            (vec![1, 2, 2, 3], (0, 1, 0)),
            (vec![1, 3, 2], (0, 0, 1)),
        ] {
            let numbers = BTreeMap::from([("a".to_owned(), vec![1]), ("b".to_owned(), numbers)]);
            let findings = judge(&sent(), &View { numbers, ..view(&ALL) });
            assert_eq!((findings.lost, findings.duplicated, findings.reordered), wrong);
            assert_eq!(findings.is_clean(), wrong == (0, 0, 0));
        }
    }

    #[test]
    fn a_gap_is_excused_only_where_one_can_be_and_it_is_said() {
        let found = |may_have_gaps, said_incomplete| {
            let sent = Sent { may_have_gaps, ..sent() };
            judge(&sent, &View { said_incomplete, ..view(&[0, 1, 4, 5]) })
        };
        for said in [false, true] {
            assert_eq!(found(false, said), Findings { lost: 2, ..clean(4) });
        }
        assert_eq!(found(true, false), Findings { gaps_silent: 2, ..clean(4) });
        assert!(!found(true, false).is_clean());
        assert_eq!(found(true, true), Findings { gaps_said: 2, ..clean(4) });
        assert!(found(true, true).is_clean());
        // What stands in its place is no fault, a piece that is not whole is one.
        let sent = Sent { may_have_gaps: true, ..sent() };
        let mut other = View { said_incomplete: true, ..view(&[0, 1, 4, 5]) };
        other.text.push_str("interrupted");
        assert!(judge(&sent, &other).is_clean());
        other.text = other.text.replacen('漢', "", 1);
        assert_eq!(judge(&sent, &other).garbled, 1);
        // What was had is never excused, however much is said.
        let sent = Sent { may_have_gaps: true, had: BTreeSet::from([0, 1, 2]), ..self::sent() };
        let findings = judge(&sent, &View { said_incomplete: true, ..view(&[0, 1, 4, 5]) });
        assert_eq!(findings, Findings { lost: 1, gaps_said: 1, ..clean(4) });
        let sent = Sent { had: BTreeSet::new(), ..sent };
        // What is doubled is never excused.
        let findings = judge(&sent, &View { said_incomplete: true, ..view(&[0, 1, 1]) });
        assert_eq!((findings.duplicated, findings.is_clean()), (1, false));
    }

    #[test]
    fn findings_add_up() {
        let one = Findings {
            lost: 1,
            duplicated: 2,
            reordered: 3,
            foreign: 4,
            garbled: 5,
            ends_missing: 6,
            ends_doubled: 7,
            ends_wrong: 8,
            gaps_said: 9,
            gaps_silent: 10,
            delivered: 11,
        };
        let mut sum = one;
        sum += one;
        assert_eq!(
            sum.to_string().replace(|c: char| !c.is_ascii_digit(), " ").split_whitespace().collect::<Vec<_>>(),
            ["2", "4", "6", "8", "10", "12", "14", "16", "18", "20", "22"]
        );
    }
}
