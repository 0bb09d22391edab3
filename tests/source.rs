//! The sources of the workspace, as the compiler's tokens.

use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use crate::support::root;

/// An identifier, `::`, a mark or a bracket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) text: String,
    /// Counts from 1.
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn is_name(&self) -> bool {
        self.text
            .starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// Identifiers, `::` and single characters; comments and literals are left out.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    let stream: TokenStream = source
        .parse()
        .unwrap_or_else(|error| panic!("{error}: {source}"));
    let mut out = Vec::new();
    flatten(stream, &mut out);
    out
}

fn token(text: &impl ToString, line: usize) -> Token {
    Token {
        text: text.to_string(),
        line,
    }
}

fn flatten(stream: TokenStream, out: &mut Vec<Token>) {
    let mut trees = stream.into_iter().peekable();
    while let Some(tree) = trees.next() {
        let line = tree.span().start().line;
        match tree {
            TokenTree::Ident(name) => out.push(token(&name, line)),
            TokenTree::Punct(mark) => {
                let colon =
                    |tree: &TokenTree| matches!(tree, TokenTree::Punct(p) if p.as_char() == ':');
                if mark.as_char() == ':' && trees.next_if(colon).is_some() {
                    out.push(token(&"::", line));
                } else {
                    out.push(token(&mark, line));
                }
            }
            TokenTree::Literal(_) => {}
            TokenTree::Group(group) => {
                let (open, close) = match group.delimiter() {
                    Delimiter::Parenthesis => ("(", ")"),
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    Delimiter::None => ("", ""),
                };
                out.push(token(&open, line));
                flatten(group.stream(), out);
                out.push(token(&close, group.span_close().end().line));
            }
        }
    }
}

/// Adds every Rust source below `folder`, in order.
pub(crate) fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(folder);
    let mut paths: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            sources(&path, into);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            into.push(path);
        }
    }
}

/// A file's path from the workspace's root.
pub(crate) fn within_root(path: &Path) -> String {
    let file = path.strip_prefix(root()).expect("it was found there");
    file.to_string_lossy().replace('\\', "/")
}

/// A source, by its path from the workspace's root.
pub(crate) fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}
