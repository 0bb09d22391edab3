//! Writes mutants into the sources, each under a condition.
//!
//! `a + b` becomes `(if is(7) { a - b } else if is(8) { a * b } else { a + b })`, and a function
//! with another return value returns it at its beginning. Mutants that do not compile in this form,
//! such as those in code that the compiler evaluates, are left out.

use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use crate::Mutant;

/// A module that is added to the sources: it selects the active mutant.
const SELECTION: &str = include_str!("selection.rs");

/// A change of a file.
#[derive(Debug)]
struct Edit {
    range: Range<usize>,
    kind: EditKind,
}

/// A kind of change. Each alternative has the number of its mutant, and its text.
#[derive(Debug)]
enum EditKind {
    /// Returns a value at the beginning of a function's body.
    Body(Vec<(usize, String)>),
    Binary {
        left: Range<usize>,
        operator: Range<usize>,
        right: Range<usize>,
        others: Vec<(usize, String)>,
    },
    /// Deletes an operator.
    Unary { operand: Range<usize>, id: usize },
    /// Replaces the guard of a match arm, or deletes the arm.
    Guard {
        others: Vec<(usize, String)>,
        deleted: Option<usize>,
    },
    /// Deletes a match arm without a guard, by a guard after its pattern.
    Arm(usize),
}

/// Finds the edits for the mutants of a file.
struct Finder {
    /// By the offset at which they begin.
    mutants: HashMap<usize, Vec<(usize, Mutant)>>,
    edits: Vec<Edit>,
    /// Number of enclosing constants and constant functions.
    constants: usize,
}

impl Finder {
    /// The mutants of a genre that begin at an offset.
    fn take(&mut self, genre: &str, at: usize) -> Vec<(usize, String)> {
        if self.constants > 0 {
            return Vec::new();
        }
        let here = self.mutants.get(&at).into_iter().flatten();
        here.filter(|(_, mutant)| mutant.genre == genre)
            .map(|(id, mutant)| (*id, mutant.replacement.clone()))
            .collect()
    }

    fn function(&mut self, is_const: bool, block: &syn::Block, visit: impl FnOnce(&mut Self)) {
        self.constants += usize::from(is_const);
        if let Some(first) = block.stmts.first() {
            let others = self.take("FnValue", first.span().byte_range().start);
            if !others.is_empty() {
                let at = block.brace_token.span.open().byte_range().end;
                self.edits.push(Edit {
                    range: at..at,
                    kind: EditKind::Body(others),
                });
            }
        }
        visit(self);
        self.constants -= usize::from(is_const);
    }

    fn constant(&mut self, visit: impl FnOnce(&mut Self)) {
        self.constants += 1;
        visit(self);
        self.constants -= 1;
    }
}

impl<'ast> Visit<'ast> for Finder {
    fn visit_item_fn(&mut self, node: &'ast syn::ItemFn) {
        self.function(node.sig.constness.is_some(), &node.block, |finder| {
            visit::visit_item_fn(finder, node);
        });
    }

    fn visit_impl_item_fn(&mut self, node: &'ast syn::ImplItemFn) {
        self.function(node.sig.constness.is_some(), &node.block, |finder| {
            visit::visit_impl_item_fn(finder, node);
        });
    }

    fn visit_trait_item_fn(&mut self, node: &'ast syn::TraitItemFn) {
        match &node.default {
            Some(block) => self.function(node.sig.constness.is_some(), block, |finder| {
                visit::visit_trait_item_fn(finder, node);
            }),
            None => visit::visit_trait_item_fn(self, node),
        }
    }

    fn visit_item_const(&mut self, node: &'ast syn::ItemConst) {
        self.constant(|finder| visit::visit_item_const(finder, node));
    }

    fn visit_impl_item_const(&mut self, node: &'ast syn::ImplItemConst) {
        self.constant(|finder| visit::visit_impl_item_const(finder, node));
    }

    fn visit_trait_item_const(&mut self, node: &'ast syn::TraitItemConst) {
        self.constant(|finder| visit::visit_trait_item_const(finder, node));
    }

    fn visit_item_static(&mut self, node: &'ast syn::ItemStatic) {
        self.constant(|finder| visit::visit_item_static(finder, node));
    }

    fn visit_type(&mut self, node: &'ast syn::Type) {
        self.constant(|finder| visit::visit_type(finder, node));
    }

    fn visit_expr_repeat(&mut self, node: &'ast syn::ExprRepeat) {
        self.visit_expr(&node.expr);
        self.constant(|finder| finder.visit_expr(&node.len));
    }

    fn visit_expr_const(&mut self, node: &'ast syn::ExprConst) {
        self.constant(|finder| visit::visit_expr_const(finder, node));
    }

    fn visit_variant(&mut self, node: &'ast syn::Variant) {
        self.constant(|finder| visit::visit_variant(finder, node));
    }

    fn visit_expr_binary(&mut self, node: &'ast syn::ExprBinary) {
        let operator = node.op.span().byte_range();
        let others = self.take("BinaryOperator", operator.start);
        if !others.is_empty() {
            self.edits.push(Edit {
                range: node.span().byte_range(),
                kind: EditKind::Binary {
                    left: node.left.span().byte_range(),
                    operator,
                    right: node.right.span().byte_range(),
                    others,
                },
            });
        }
        visit::visit_expr_binary(self, node);
    }

    fn visit_expr_unary(&mut self, node: &'ast syn::ExprUnary) {
        let range = node.span().byte_range();
        if let Some((id, _)) = self.take("UnaryOperator", range.start).pop() {
            self.edits.push(Edit {
                range,
                kind: EditKind::Unary {
                    operand: node.expr.span().byte_range(),
                    id,
                },
            });
        }
        visit::visit_expr_unary(self, node);
    }

    fn visit_arm(&mut self, node: &'ast syn::Arm) {
        let deleted = self.take("MatchArm", node.span().byte_range().start);
        let deleted = deleted.first().map(|(id, _)| *id);
        if let Some((_, guard)) = &node.guard {
            let range = guard.span().byte_range();
            let others = self.take("MatchArmGuard", range.start);
            if !others.is_empty() || deleted.is_some() {
                self.edits.push(Edit {
                    range,
                    kind: EditKind::Guard { others, deleted },
                });
            }
        } else if let Some(id) = deleted {
            let at = node.pat.span().byte_range().end;
            self.edits.push(Edit {
                range: at..at,
                kind: EditKind::Arm(id),
            });
        }
        visit::visit_arm(self, node);
    }
}

/// The condition that mutant `id` is active.
fn is(id: usize) -> String {
    format!("crate::mutant::is({id})")
}

/// Returns `range` of `source` with the edits in it applied. The edits are sorted, and disjoint or
/// nested. Comments mark the beginning and the end of each mutant's text.
fn render(source: &str, range: Range<usize>, edits: &[Edit]) -> String {
    let mut out = String::new();
    let mut at = range.start;
    let mut next = edits.partition_point(|edit| edit.range.start < range.start);
    while let Some(edit) = edits.get(next).filter(|edit| edit.range.end <= range.end) {
        next += 1;
        if edit.range.start < at {
            continue;
        }
        out += &source[at..edit.range.start];
        at = edit.range.end;
        let inner = &edits[next..];
        // An operand, with the edits in it applied.
        let within = |range: &Range<usize>| render(source, range.clone(), inner);
        match &edit.kind {
            EditKind::Body(others) => {
                for (id, value) in others {
                    let _ = write!(
                        out,
                        "/*{{{id}*/ if {} {{ return {value}; }} /*}}*/",
                        is(*id)
                    );
                }
            }
            EditKind::Binary {
                left,
                operator,
                right,
                others,
            } => {
                out += "(";
                for (id, other) in others {
                    let (left, right) = (&source[left.clone()], &source[right.clone()]);
                    let _ = write!(
                        out,
                        "/*{{{id}*/ if {} {{ {left} {other} {right} }} /*}}*/ else ",
                        is(*id)
                    );
                }
                let operator = &source[operator.clone()];
                let _ = write!(out, "{{ {} {operator} {} }})", within(left), within(right));
            }
            EditKind::Unary { operand, id } => {
                let operator = &source[edit.range.start..operand.start];
                let _ = write!(
                    out,
                    "(/*{{{id}*/ if {} {{ {} }} /*}}*/ else {{ {operator}{} }})",
                    is(*id),
                    &source[operand.clone()],
                    within(operand)
                );
            }
            EditKind::Guard { others, deleted } => {
                if let Some(id) = deleted {
                    let _ = write!(out, "/*{{{id}*/ !{} /*}}*/ && ", is(*id));
                }
                out += "(";
                for (id, other) in others {
                    let _ = write!(out, "/*{{{id}*/ if {} {{ {other} }} /*}}*/ else ", is(*id));
                }
                let _ = write!(out, "{{ {} }})", render(source, edit.range.clone(), inner));
            }
            EditKind::Arm(id) => {
                let _ = write!(out, " /*{{{id}*/ if !{} /*}}*/", is(*id));
            }
        }
    }
    out + &source[at..range.end]
}

/// The numbers of the mutants in a text, and the range of each.
fn places(woven: &str) -> Vec<(usize, Range<usize>)> {
    let mut found = Vec::new();
    let mut open = Vec::new();
    let mut at = 0;
    while let Some(begin) = woven[at..].find("/*").map(|begin| at + begin) {
        let Some(end) = woven[begin..].find("*/").map(|end| begin + end + 2) else {
            break;
        };
        let inside = &woven[begin + 2..end - 2];
        if inside == "}" {
            if let Some((id, from)) = open.pop() {
                found.push((id, from..end));
            }
        } else if let Some(id) = inside.strip_prefix('{').and_then(|id| id.parse().ok()) {
            open.push((id, begin));
        }
        at = end;
    }
    found
}

/// Writes the mutants of `ids` into the source of one file.
fn weave_file(
    source: &str,
    mutants: &[Mutant],
    ids: impl Iterator<Item = usize>,
) -> Result<String, syn::Error> {
    let mut lines = vec![0];
    lines.extend(source.match_indices('\n').map(|(at, _)| at + 1));
    let mut finder = Finder {
        mutants: HashMap::new(),
        edits: Vec::new(),
        constants: 0,
    };
    for id in ids {
        let start = mutants[id].span.start;
        let line = &source[lines[start.line - 1]..];
        let column = line.char_indices().nth(start.column - 1);
        let at = lines[start.line - 1] + column.map_or(0, |(at, _)| at);
        let here = finder.mutants.entry(at).or_default();
        here.push((id, mutants[id].clone()));
    }
    finder.visit_file(&syn::parse_file(source)?);
    let mut edits = finder.edits;
    edits.sort_by_key(|edit| (edit.range.start, std::cmp::Reverse(edit.range.end)));
    Ok(render(source, 0..source.len(), &edits))
}

#[derive(Debug, Deserialize)]
struct Reported {
    reason: String,
    message: Option<Diagnostic>,
}

#[derive(Debug, Deserialize)]
struct Diagnostic {
    level: String,
    rendered: Option<String>,
    spans: Vec<DiagnosticSpan>,
}

#[derive(Debug, Deserialize)]
struct DiagnosticSpan {
    file_name: String,
    byte_start: usize,
    byte_end: usize,
    line_start: usize,
    line_end: usize,
    is_primary: bool,
}

/// Arguments that build the tests for mutants.
pub(crate) const TESTS: [&str; 13] = [
    "--profile",
    "mutants",
    "--package",
    "dominoes-proto",
    "--package",
    "dominoes-netstack",
    "--package",
    "dominoes-tests",
    "--features",
    "dominoes-netstack/testkit",
    "--lib",
    "--test",
    "main",
];

/// Cargo without lints: mutants compare numbers in useless ways.
pub(crate) fn cargo(sources: &Path) -> Command {
    let mut cargo = Command::new("cargo");
    cargo
        .env("RUSTFLAGS", "--cap-lints=allow")
        .current_dir(sources);
    cargo
}

/// The errors that the compiler reports for the sources.
fn errors(sources: &Path) -> Result<Vec<Diagnostic>, Box<dyn Error>> {
    let mut check = cargo(sources);
    check.args(["check", "--quiet", "--message-format=json"]);
    check.args(TESTS);
    let output = check.output()?;
    let text = String::from_utf8(output.stdout)?;
    let mut errors = Vec::new();
    for line in text.lines().filter(|line| line.starts_with('{')) {
        let reported: Reported = serde_json::from_str(line)?;
        if reported.reason == "compiler-message" {
            errors.extend(reported.message.filter(|message| message.level == "error"));
        }
    }
    errors.retain(|error| !error.spans.is_empty());
    if errors.is_empty() && !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(errors)
}

/// The mutants that an error is about: those around it, else those within it, else those on its
/// lines, else the nearest ones before and after it.
fn blamed(error: &Diagnostic, woven: &HashMap<String, String>) -> Vec<usize> {
    let mut inside = Vec::new();
    let mut covered = Vec::new();
    let mut beside = Vec::new();
    let mut next = Vec::new();
    for span in &error.spans {
        let Some(text) = woven.get(&span.file_name) else {
            continue;
        };
        let mut lines = vec![0];
        lines.extend(text.match_indices('\n').map(|(at, _)| at + 1));
        let first = lines[span.line_start - 1];
        let last = lines.get(span.line_end).copied().unwrap_or(text.len());
        let all = places(text);
        let before = all.iter().filter(|(_, place)| place.end <= span.byte_start);
        next.extend(before.max_by_key(|(_, place)| place.end).map(|(id, _)| *id));
        let behind = all.iter().filter(|(_, place)| place.start >= span.byte_end);
        next.extend(
            behind
                .min_by_key(|(_, place)| place.start)
                .map(|(id, _)| *id),
        );
        for (id, place) in all {
            if place.start <= span.byte_start && span.byte_end <= place.end {
                inside.push(id);
            } else if span.is_primary
                && span.byte_start <= place.start
                && place.end <= span.byte_end
            {
                covered.push(id);
            } else if first <= place.end && place.start <= last {
                beside.push(id);
            }
        }
    }
    [inside, covered, beside, next]
        .into_iter()
        .find(|ids| !ids.is_empty())
        .unwrap_or_default()
}

pub(crate) fn weave(mutants: &[Mutant], sources: &Path) -> Result<(), Box<dyn Error>> {
    let files: BTreeSet<&str> = mutants.iter().map(|mutant| mutant.file.as_str()).collect();
    let mut originals = HashMap::new();
    for file in files {
        originals.insert(file.to_owned(), fs::read_to_string(sources.join(file))?);
    }
    // Both crates use one module to select the mutant.
    for (root, selection) in [
        ("crates/netstack/proto/src", "pub mod mutant;"),
        ("crates/netstack/src", "pub use dominoes_proto::mutant;"),
    ] {
        let root = sources.join(root).join("lib.rs");
        let head = fs::read_to_string(&root)?;
        fs::write(&root, format!("{head}\n#[doc(hidden)]\n{selection}\n"))?;
    }
    let selection = sources.join("crates/netstack/proto/src/mutant.rs");
    fs::write(selection, SELECTION)?;

    let mut left_out = BTreeSet::new();
    loop {
        let mut woven = HashMap::new();
        for (file, source) in &originals {
            let ids = (0..mutants.len())
                .filter(|id| mutants[*id].file == *file && !left_out.contains(id));
            let text = weave_file(source, mutants, ids)?;
            fs::write(sources.join(file), &text)?;
            woven.insert(file.clone(), text);
        }
        let count: usize = woven.values().map(|text| places(text).len()).sum();
        println!("{count} of {} mutants are in the sources", mutants.len());
        let errors = errors(sources)?;
        if errors.is_empty() {
            let names = woven.values().flat_map(|text| places(text));
            let names: BTreeSet<&str> = names.map(|(id, _)| mutants[id].name.as_str()).collect();
            let names: Vec<&str> = names.into_iter().collect();
            fs::write(sources.join("woven.txt"), names.join("\n") + "\n")?;
            return Ok(());
        }
        let before = left_out.len();
        for error in &errors {
            left_out.extend(blamed(error, &woven));
        }
        if left_out.len() == before {
            let texts = errors.into_iter().filter_map(|error| error.rendered);
            return Err(texts.collect::<Vec<_>>().join("\n").into());
        }
    }
}
