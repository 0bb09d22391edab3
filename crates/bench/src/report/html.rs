//! The page: a table of all published figures, then a section for each experiment.

use core::fmt::Write;

use super::{Section, contents, figures};
use crate::paper::{Figure, Outcome, Verdict};
use crate::plot;
use crate::svg::escaped;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1080px;margin:2em auto;padding:0 1em}
h1{font-size:1.6em;margin-bottom:.2em}h2{font-size:1.25em;border-top:1px solid #ddd;padding-top:1em;margin-top:2em}
table{border-collapse:collapse;width:100%;font-size:13.5px}th,td{text-align:left;vertical-align:top;padding:.35em .6em;border-bottom:1px solid #e4e4e4}
th{background:#f5f5f5}td.place{white-space:nowrap}.note{color:#555}svg{max-width:100%;height:auto;margin:.6em 0}
pre{overflow:auto;background:#f8f8f8;padding:1em;font-size:12px;line-height:1.4}summary{cursor:pointer;color:#4678b4}
.v{white-space:nowrap;padding:.1em .5em;border-radius:.6em;font-size:12px;background:#eee}
.agrees{background:#dff0e2}.same-direction,.projected,.no-difference{background:#fbf0cf}.differs{background:#f8dcdc}
.failed{background:#f8dcdc;padding:.6em 1em}div{overflow-x:auto}
@media(max-width:800px){body{margin:1em auto}table,tbody,tr,td{display:block}th,td:empty{display:none}
td{border:0;padding:.1em 0;overflow-wrap:anywhere}tr{border-bottom:1px solid #ddd;padding:.5em 0}svg{max-width:none}}";

fn chip(verdict: Verdict) -> String {
    let name = verdict.name();
    format!("<span class='v {}'>{name}</span>", name.replace(' ', "-"))
}

fn find<'a>(sections: &'a [Section], name: &str) -> Option<&'a Section> {
    sections.iter().find(|section| section.name == name)
}

fn outcome(sections: &[Section], name: &str, figure: &Figure) -> Outcome {
    match find(sections, name) {
        Some(section) => figure.compare(&section.measures),
        None => Outcome {
            verdict: Verdict::NotMeasured,
            sentence: format!("run cargo bench {name}"),
        },
    }
}

/// The document.
pub(super) fn page(sections: &[Section]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write_page(&mut out, sections);
    out
}

fn write_page(out: &mut String, sections: &[Section]) -> core::fmt::Result {
    writeln!(
        out,
        "<!doctype html>\n<html lang='en'>\n<head><meta charset='utf-8'>\
         <meta name='viewport' content='width=device-width,initial-scale=1'>\
         <title>Dominoes: experiments</title>\n<style>{STYLE}</style></head>\n<body>\n\
         <h1>What the papers found, and what we find</h1>"
    )?;
    if let Some(section) = sections.first() {
        let m = &section.machine;
        writeln!(
            out,
            "<p class='note'>{}, {} cores, {}, Linux {}, commit {}. Ours agrees with a published number \
             if both quartiles of five pairs are within a quarter of it, and a ratio's gain within \
             half and twice the published one; a curve without numbers has a direction alone.</p>",
            escaped(&m.cpu),
            m.cores,
            escaped(&m.caches.join(" ")),
            escaped(&m.kernel),
            escaped(m.commit.as_deref().unwrap_or("unknown")),
        )?;
    }
    write_summary(out, sections)?;
    for (name, about, figures) in contents() {
        match find(sections, name) {
            Some(section) => write_section(out, section, figures)?,
            None => writeln!(
                out,
                "<h2 id='{name}'>{name}</h2>\n<p>{}</p>\n<p class='note'>Not run yet: <code>cargo bench {name}</code>.</p>",
                escaped(about)
            )?,
        }
    }
    writeln!(out, "</body></html>")
}

fn write_summary(out: &mut String, sections: &[Section]) -> core::fmt::Result {
    writeln!(
        out,
        "<table>\n<tr><th>paper</th><th>figure, table</th><th>experiment</th><th></th><th>outcome</th></tr>"
    )?;
    let mut paper = "";
    for (name, figure) in figures() {
        let source = if figure.source == paper {
            ""
        } else {
            &figure.source
        };
        paper = &figure.source;
        let Outcome { verdict, sentence } = outcome(sections, name, figure);
        writeln!(
            out,
            "<tr><td>{}</td><td class='place'>{}</td><td class='place'><a href='#{name}'>{name}</a></td><td>{}</td><td>{}</td></tr>",
            escaped(source),
            escaped(&figure.place),
            chip(verdict),
            escaped(&sentence),
        )?;
    }
    writeln!(out, "</table>")
}

fn write_section(out: &mut String, section: &Section, figures: &[Figure]) -> core::fmt::Result {
    let name = &section.name;
    writeln!(
        out,
        "<h2 id='{name}'>{name}</h2>\n<p>{}</p>",
        escaped(&section.about)
    )?;
    for failure in &section.failures {
        writeln!(out, "<p class='failed'>Failed: {}</p>", escaped(failure))?;
    }
    if section.disturbed_panels > 0 {
        writeln!(
            out,
            "<p class='note'>The machine was disturbed: {} panels have no figures.</p>",
            section.disturbed_panels
        )?;
    }
    if !figures.is_empty() {
        writeln!(
            out,
            "<table>\n<tr><th>published</th><th>says</th><th>ours</th><th></th><th>what is different</th></tr>"
        )?;
        for figure in figures {
            let Outcome { verdict, sentence } = figure.compare(&section.measures);
            let is_said = sentence.contains(&figure.differs);
            let differs = if is_said { "" } else { &figure.differs };
            writeln!(
                out,
                "<tr><td>{}, {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                escaped(&figure.source),
                escaped(&figure.place),
                escaped(&figure.says()),
                escaped(&sentence),
                chip(verdict),
                escaped(differs),
            )?;
        }
        writeln!(out, "</table>")?;
    }
    let compared = plot::compared(figures, &section.measures);
    for picture in [compared, section.picture.clone()].into_iter().flatten() {
        writeln!(out, "<div>{picture}</div>")?;
    }
    let targets = section.bounds.iter().filter(|bound| bound.has_target);
    let unmet = targets.clone().filter(|bound| bound.is_met != Some(true));
    let (all, left) = (targets.count(), unmet.clone().count());
    if all > 0 {
        writeln!(out, "<p>{} of {all} targets met.</p>", all - left)?;
    }
    for bound in unmet {
        writeln!(out, "<p class='note'>{}</p>", escaped(&bound.line))?;
    }
    writeln!(
        out,
        "<details><summary>all figures ({:.0} s, commit {})</summary><pre>{}</pre></details>",
        section.seconds,
        escaped(section.machine.commit.as_deref().unwrap_or("unknown")),
        escaped(&section.table),
    )
}
