//! A run on one page of a terminal: a line for each experiment, then the published figures, the
//! worst first.

use core::fmt::{self, Write};
use std::collections::BTreeMap;

use super::{Section, figures};
use crate::paper::Verdict;
use crate::table::Bound;

/// Most goals and figures that have a line each.
const MOST_LINES: usize = 16;
/// Characters of such a line.
const LINE: usize = 160;

/// The page for these sections.
pub fn page(sections: &[Section]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut out, sections);
    out
}

fn write_page(out: &mut String, sections: &[Section]) -> fmt::Result {
    let missed = |section: &&Section| {
        let bounds = section.bounds.iter();
        let missed = bounds.filter(|bound| bound.is_met == Some(false)).count();
        (section.failures.len(), missed)
    };
    let mut worst: Vec<&Section> = sections.iter().collect();
    worst.sort_by_key(|section| core::cmp::Reverse(missed(section)));
    writeln!(
        out,
        "\n== what was asked, and what was found; the worst first"
    )?;
    for section in &worst {
        writeln!(
            out,
            "{:<13} {}; {}",
            section.name,
            section.about,
            found(section)
        )?;
    }
    let missed = worst.iter().flat_map(|section| {
        let bounds = section.bounds.iter();
        let missed = bounds.filter(|bound| bound.is_met == Some(false));
        missed.map(|bound| format!("{:<13} {}", section.name, bound.line))
    });
    write_lines(out, "goals that are not met", missed.collect())?;

    let mut by_verdict: BTreeMap<usize, Vec<(String, String)>> = BTreeMap::new();
    for (name, figure) in figures() {
        let Some(section) = sections.iter().find(|section| section.name == name) else {
            continue;
        };
        let outcome = figure.compare(&section.measures);
        let rank = Verdict::ALL.iter().position(|one| *one == outcome.verdict);
        let place = format!("{}, {}", figure.source, figure.place);
        let all = by_verdict.entry(rank.unwrap_or_default()).or_default();
        all.push((place, outcome.sentence));
    }
    let mut rest = Vec::new();
    for (rank, all) in by_verdict {
        let verdict = Verdict::ALL[rank];
        let heading = format!("published figures: {}", verdict.name());
        let line = |(place, sentence): &(String, String)| format!("{place}: {sentence}");
        match verdict {
            Verdict::Differs | Verdict::Disturbed | Verdict::NoDifference => {
                write_lines(out, &heading, all.iter().map(line).collect())?;
            }
            _ => rest.push(format!("{} {}", all.len(), verdict.name())),
        }
    }
    if !rest.is_empty() {
        writeln!(out, "-- other published figures: {}", rest.join(", "))?;
    }
    writeln!(out, "{}", judged(sections))
}

/// The result of an experiment, in a few words.
fn found(section: &Section) -> String {
    if let Some(failure) = section.failures.first() {
        return format!("FAILED: {failure}");
    }
    let count = |is: fn(&Bound) -> bool| section.bounds.iter().filter(|one| is(one)).count();
    let mut found = Vec::new();
    let goals = count(|bound| bound.has_target);
    if goals > 0 {
        let met = count(|bound| bound.is_met == Some(true));
        found.push(format!("{met} of {goals} goals met"));
    }
    let ratio = section.bounds.iter().find(|bound| bound.is_measured);
    found.extend(ratio.map(|bound| short(&bound.line)));
    if section.disturbed_panels > 0 {
        found.push(format!("{} panels disturbed", section.disturbed_panels));
    }
    if found.is_empty() {
        found.push("reported".to_owned());
    }
    found.join("; ")
}

/// A line of a bound, without its goal and its values on near and far cores.
fn short(line: &str) -> String {
    let end = line.find(" pairs").or_else(|| line.find("; "));
    line[..end.unwrap_or(line.len())].to_owned()
}

fn write_lines(out: &mut String, heading: &str, lines: Vec<String>) -> fmt::Result {
    if lines.is_empty() {
        return Ok(());
    }
    writeln!(out, "-- {heading}: {}", lines.len())?;
    for line in lines.iter().take(MOST_LINES) {
        let end = line.char_indices().nth(LINE).map(|(at, _)| at);
        match end {
            Some(end) => writeln!(out, "{} ...", &line[..end])?,
            None => writeln!(out, "{line}")?,
        }
    }
    match lines.len().saturating_sub(MOST_LINES) {
        0 => Ok(()),
        more => writeln!(out, "... and {more} more, which the report has"),
    }
}

/// How many goals are met, and how much of the run was disturbed.
fn judged(sections: &[Section]) -> String {
    let bounds = || sections.iter().flat_map(|section| &section.bounds);
    let count = |is: fn(&Bound) -> bool| bounds().filter(|bound| is(bound)).count();
    let pairs = |at: usize| bounds().map(|bound| bound.pairs[at]).sum::<usize>();
    format!(
        "{} of {} goals met, {} not measured, {} not judged by one pair or disturbed ones alone; \
         {} of {} pairs were disturbed and left out",
        count(|bound| bound.is_met == Some(true)),
        count(|bound| bound.has_target),
        count(|bound| bound.has_target && !bound.is_measured),
        count(|bound| bound.has_target && bound.is_measured && bound.is_met.is_none()),
        pairs(1),
        pairs(0) + pairs(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Measure;
    use crate::report::contents;
    use crate::report::tests::section;
    use crate::spread::Spread;

    #[test]
    fn the_page_of_the_worst_run_has_at_most_120_lines_and_the_worst_is_first() {
        let mut sections = Vec::new();
        for (at, (name, _, figures)) in contents().enumerate() {
            let mut one = section(name, "");
            one.bounds = vec![one.bounds[0].clone(); 5 + at];
            for check in figures.iter().flat_map(|figure| &figure.checks) {
                let measure = Measure::of(Spread::one(0.001), 5);
                one.measures.insert(check.measure.clone(), measure);
            }
            sections.push(one);
        }
        let page = page(&sections);
        println!("{page}");
        let last = sections.last().unwrap();
        let first = page.lines().nth(2).unwrap();
        assert!(first.starts_with(&last.name), "{first}");
        assert!(page.lines().count() <= 120, "{}", page.lines().count());
        assert!(page.contains("published figures: differs"));
    }
}
