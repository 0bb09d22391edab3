//! The command line of every example, and its `main`.

use std::error::Error;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

/// A value, or the error that stopped the example.
pub(crate) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// The name of a value without an option, as in `ping 10.78.0.2`.
#[allow(dead_code, reason = "not every example takes such values")]
pub(crate) const VALUE: &str = "";

/// The current option's value, or a value without an option.
pub(crate) struct Arguments {
    parser: lexopt::Parser,
    /// The option's name in messages.
    option: String,
    /// A value without an option.
    value: Option<OsString>,
}

#[allow(dead_code, reason = "each example needs some")]
impl Arguments {
    /// Parses the value with `parse`. An error names the option and the value.
    pub(crate) fn parse_with<T, E: Display>(
        &mut self,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Outcome<T> {
        let given = self.path()?;
        let given = given.to_string_lossy();
        let named = [&*self.option, &*given].join(" ");
        parse(&given).map_err(|error| format!("{}: {error}", named.trim_start()).into())
    }

    pub(crate) fn parse<T: FromStr<Err: Display>>(&mut self) -> Outcome<T> {
        self.parse_with(str::parse)
    }

    /// Parses a number in this range.
    pub(crate) fn number<T>(&mut self, range: RangeInclusive<T>) -> Outcome<T>
    where
        T: FromStr<Err: Display> + PartialOrd + Display,
    {
        self.parse_with(|text| {
            let number: T = text.parse().map_err(|error: T::Err| error.to_string())?;
            if range.contains(&number) {
                Ok(number)
            } else {
                Err(format!("not from {} to {}", range.start(), range.end()))
            }
        })
    }

    pub(crate) fn text(&mut self) -> Outcome<String> {
        self.parse()
    }

    pub(crate) fn path(&mut self) -> Outcome<PathBuf> {
        Ok(match self.value.take() {
            Some(value) => value.into(),
            None => self.parser.value()?.into(),
        })
    }
}

/// Runs the example with the options of its command line, or prints `usage` for `--help`. `take`
/// gets each option without its dashes, or [`VALUE`], and returns whether it knows the option. An
/// error goes to the standard error stream, after the example's `name`.
pub(crate) fn main<O>(
    name: &str,
    usage: &[&str],
    options: O,
    take: impl FnMut(&mut O, &str, &mut Arguments) -> Outcome<bool>,
    run: impl FnOnce(&O) -> Outcome<()>,
) -> ExitCode {
    let done = read(options, take).and_then(|options| match options {
        None => {
            // A reader that has read enough closes the pipe.
            let _ = io::stdout().write_all(usage.concat().as_bytes());
            Ok(())
        }
        Some(options) => run(&options),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{name}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns `None` if the user asks for help.
fn read<O>(
    mut options: O,
    mut take: impl FnMut(&mut O, &str, &mut Arguments) -> Outcome<bool>,
) -> Outcome<Option<O>> {
    use lexopt::Arg::{Long, Short, Value};
    let mut arguments = Arguments {
        parser: lexopt::Parser::from_env(),
        option: String::new(),
        value: None,
    };
    while let Some(argument) = arguments.parser.next()? {
        let (word, option, value) = match argument {
            Long("help") | Short('h') => return Ok(None),
            Long(word) => (word.to_owned(), format!("--{word}"), None),
            Short(letter) => return Err(unknown(&format!("-{letter}"))),
            Value(value) => (VALUE.to_owned(), String::new(), Some(value)),
        };
        let named = match &value {
            Some(value) => value.to_string_lossy().into_owned(),
            None => option.clone(),
        };
        // An option with an empty name is an error.
        let is_named = !word.is_empty() || value.is_some();
        (arguments.option, arguments.value) = (option, value);
        if !is_named || !take(&mut options, &word, &mut arguments)? {
            return Err(unknown(&named));
        }
    }
    Ok(Some(options))
}

fn unknown(argument: &str) -> Box<dyn Error + Send + Sync> {
    format!("`{argument}` is unknown; see --help").into()
}
