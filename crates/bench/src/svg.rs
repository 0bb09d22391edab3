//! SVG pictures of results: bars, lines, and text that stays inside the picture.
//!
//! A [`Canvas`] has a fixed width and is as high as its content. Text has no exact width
//! before it is shown, so [`text_width`] estimates it from above, and [`Canvas::paragraph`] breaks
//! lines by that estimate.

use core::fmt::Write;

/// What [`text_width`] takes for one character, in parts of the size of the text. Digits and most
/// lower-case letters of common sans-serif fonts are narrower.
const CHARACTER: f64 = 0.6;
/// Pixels around everything.
pub(crate) const MARGIN: f64 = 12.0;
/// Distance of two lines of a paragraph, in parts of the size of the text.
const LINE: f64 = 1.4;

/// Colour of axes, labels and notes.
pub(crate) const INK: &str = "#222";
/// Colour of grid lines.
pub(crate) const GRID: &str = "#ddd";

/// The point of a text that is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// The width of a text of this size, in pixels, estimated from above.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * CHARACTER
}

/// A picture that is being drawn.
#[derive(Debug)]
pub(crate) struct Canvas {
    width: f64,
    right: f64,
    bottom: f64,
    body: String,
}

impl Canvas {
    /// An empty one, `width` pixels wide.
    pub(crate) fn new(width: f64) -> Canvas {
        Canvas {
            width,
            right: 0.0,
            bottom: 0.0,
            body: String::new(),
        }
    }

    /// Pixels from left to right.
    pub(crate) fn width(&self) -> f64 {
        self.width
    }

    /// The right end of its content, in pixels. At most [`Canvas::width`] if everything can be
    /// seen.
    #[cfg(test)]
    pub(crate) fn right(&self) -> f64 {
        self.right
    }

    fn reach(&mut self, x: f64, y: f64) {
        self.right = self.right.max(x);
        self.bottom = self.bottom.max(y);
    }

    // Writing to a string cannot fail, here and below.

    /// A filled rectangle with its upper left corner at `(x, y)`.
    pub(crate) fn rect(&mut self, (x, y): (f64, f64), (width, height): (f64, f64), fill: &str) {
        self.reach(x + width, y + height);
        let _ = writeln!(
            self.body,
            "<rect x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height:.1}' fill='{fill}'/>"
        );
    }

    /// A line through all `points`.
    pub(crate) fn line(&mut self, points: &[(f64, f64)], stroke: &str, width: f64) {
        let mut list = String::new();
        for &(x, y) in points {
            self.reach(x, y);
            let _ = write!(list, "{x:.1},{y:.1} ");
        }
        let list = list.trim_end();
        let _ = writeln!(
            self.body,
            "<polyline fill='none' stroke='{stroke}' stroke-width='{width}' points='{list}'/>"
        );
    }

    /// One line of text, its baseline at `y`.
    pub(crate) fn text(&mut self, (x, y): (f64, f64), size: f64, anchor: Anchor, text: &str) {
        let wide = text_width(text, size);
        let (name, right) = match anchor {
            Anchor::Start => ("start", x + wide),
            Anchor::Middle => ("middle", x + wide / 2.0),
            Anchor::End => ("end", x),
        };
        self.reach(right, y + size * 0.3);
        let text = escaped(text);
        let _ = writeln!(
            self.body,
            "<text x='{x:.1}' y='{y:.1}' font-size='{size}' text-anchor='{name}'>{text}</text>"
        );
    }

    /// Text from `x` to the right margin in as many lines as it takes, the first with its baseline
    /// at `y`. Returns the baseline of the line that would follow.
    pub(crate) fn paragraph(&mut self, (x, mut y): (f64, f64), size: f64, text: &str) -> f64 {
        let room = self.width - MARGIN - x;
        for line in wrapped(text, room, size) {
            self.text((x, y), size, Anchor::Start, &line);
            y += size * LINE;
        }
        y
    }

    /// The document.
    pub(crate) fn finish(self) -> String {
        let Canvas {
            width,
            bottom,
            body,
            ..
        } = self;
        let height = bottom + MARGIN;
        format!(
            "<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0}' height='{height:.0}' \
             viewBox='0 0 {width:.0} {height:.0}' font-family='sans-serif' fill='{INK}'>\n<rect width='100%' height='100%' fill='white'/>\n\
             {body}</svg>\n"
        )
    }
}

/// The words of `text` in lines of at most `room` pixels. A word that is longer than that has a
/// separate line.
fn wrapped(text: &str, room: f64, size: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(line, size) + text_width(word, size) + size < room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Text with the escapes of XML and HTML.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Round values from 0 up to `most` for an axis: at least two, about `count`.
pub(crate) fn ticks(most: f64, count: usize) -> Vec<f64> {
    let most = most.max(f64::MIN_POSITIVE);
    let rough = most / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = steps.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(10.0 * power);
    (0..=(most / step).floor() as usize)
        .map(|n| n as f64 * step)
        .collect()
}

/// A value of an axis: up to three decimal places, without trailing zeros.
pub(crate) fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_is_broken_into_lines_that_fit() {
        let text = "published: Sizemore 2011, figure 6.2: TCP receive with and without checksums by the card";
        let mut canvas = Canvas::new(200.0);
        let below = canvas.paragraph((MARGIN, 20.0), 13.0, text);
        assert!(canvas.right() <= 200.0, "{}", canvas.right());
        assert!(below > 20.0 + 4.0 * 13.0, "{below}");
        let lines = wrapped(text, 176.0, 13.0);
        assert_eq!(lines.join(" "), text);
    }

    #[test]
    fn a_long_word_stands_alone() {
        assert_eq!(
            wrapped("a bbbbbbbbbb c", 20.0, 10.0),
            ["a", "bbbbbbbbbb", "c"]
        );
    }

    #[test]
    fn a_canvas_is_as_high_as_what_is_on_it() {
        let mut canvas = Canvas::new(100.0);
        canvas.rect((10.0, 30.0), (20.0, 40.0), "#000");
        canvas.text((0.0, 10.0), 10.0, Anchor::Start, "a < b & c");
        let svg = canvas.finish();
        assert!(svg.contains("height='82'"), "{svg}");
        assert!(svg.contains("a &lt; b &amp; c"), "{svg}");
    }

    #[test]
    fn ticks_are_round_and_within_the_axis() {
        assert_eq!(ticks(11.3, 5), [0.0, 5.0, 10.0]);
        assert_eq!(ticks(1.0, 5).len(), 6);
        assert!(ticks(0.0, 5).len() >= 2);
        assert_eq!(
            (number(0.6000001), number(20.0)),
            ("0.6".to_owned(), "20".to_owned())
        );
    }
}
