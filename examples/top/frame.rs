//! One frame: the measurements of a stack, laid out for a terminal or as text.

use std::time::{Duration, Instant};

use dominoes_netstack::stats::StackStats;
use dominoes_netstack::{ConnectionStats, Stack};
use ratatui::Frame;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table};

/// The most connections to query, more than a terminal has lines.
const MOST: usize = 200;

/// The measurements of a stack at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    at: Instant,
    threads: dominoes::Snapshot,
    pub(crate) connections: Vec<ConnectionStats>,
    stats: StackStats,
}

impl Sample {
    /// Queries `stack`.
    pub(crate) fn at(stack: &Stack) -> Sample {
        let mut connections = stack.connections(MOST);
        // Puts the connections with most traffic first.
        connections.sort_by_key(|one| core::cmp::Reverse(one.received + one.acknowledged));
        Sample {
            at: Instant::now(),
            threads: stack.snapshot(),
            connections,
            stats: stack.stats(),
        }
    }
}

/// Draws the changes between two samples.
pub(crate) fn draw(frame: &mut Frame<'_>, title: &str, before: &Sample, now: &Sample) {
    let threads = now.threads.domains.len() as u16 + 3;
    let channels = now.threads.channels.len() as u16;
    let [head, log, upper, lower] = Layout::vertical([
        Constraint::Length(4),
        Constraint::Length(channels),
        Constraint::Length(threads),
        Constraint::Min(3),
    ])
    .areas(frame.area());
    let span = now.at.duration_since(before.at);
    frame.render_widget(summary(title, before, now, span), head);
    let lines = now.threads.channels.iter().map(|channel| {
        let lags: Vec<u64> = channel.lags.iter().map(|(_, lag)| *lag).collect();
        let (name, len, capacity) = (&channel.name, channel.len, channel.capacity);
        Line::raw(format!(
            "{name}: {len} of {capacity} requests, behind by {lags:?}"
        ))
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), log);
    draw_threads(frame, upper, before, now, span);
    draw_connections(frame, lower, before, now, span);
}

fn summary(title: &str, before: &Sample, now: &Sample, span: Duration) -> Paragraph<'static> {
    let (pump, state) = (&now.stats.pump, &now.stats.state);
    let frames = rate(pump.frames - before.stats.pump.frames, span);
    let text = vec![
        Line::styled(title.to_owned(), Style::new().add_modifier(Modifier::BOLD)),
        Line::raw(format!(
            "{frames} frames/s in, {} segments in {} runs",
            short(pump.segments),
            short(pump.runs),
        )),
        Line::raw(format!(
            "{} connections opened, {} closed, {} established; {} segments with bad checksums",
            short(state.opened),
            short(state.closed),
            short(state.currently_established()),
            short(state.bad_checksum),
        )),
        Line::raw(format!(
            "{} segments sent again, {} timeouts, {} resets in, {} out",
            short(state.retransmitted),
            short(state.timeouts),
            short(state.resets_received),
            short(state.resets_sent),
        )),
    ];
    Paragraph::new(text)
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(title)
}

/// A column of a table.
struct Column {
    name: &'static str,
    width: u16,
    /// A narrow terminal leaves out columns of high ranks first.
    rank: u8,
}

const fn column(name: &'static str, width: u16, rank: u8) -> Column {
    Column { name, width, rank }
}

/// All columns take 84 characters; an 80-column terminal shows columns of 73.
const THREADS: [Column; 8] = [
    // `group 10 replica 1`
    column("thread", 18, 0),
    column("requests/s", 10, 1),
    column("requests", 10, 7),
    // Room for three digits, a percent sign and ten marks.
    column("primary", 16, 2),
    column("steals", 6, 4),
    column("waits", 6, 5),
    column("parks", 6, 6),
    column("lag", 5, 3),
];

/// All columns take 107 characters; an 80-column terminal shows columns of 78.
const CONNECTIONS: [Column; 9] = [
    // `198.198.198.198:65535`
    column("local", 21, 0),
    column("remote", 21, 0),
    column("state", 11, 1),
    column("cwnd", 7, 5),
    column("rtt", 6, 4),
    column("bytes in", 9, 6),
    column("in/s", 7, 2),
    column("bytes out", 10, 7),
    column("out/s", 7, 3),
];

/// Chooses the `columns` that a table of `width` shows: all of rank 0, then as many of the next
/// ranks as fit with a space between them.
fn shown(columns: &[Column], width: u16) -> Vec<usize> {
    let mut ranked: Vec<usize> = (0..columns.len()).collect();
    ranked.sort_by_key(|&i| columns[i].rank);
    let mut taken = 0;
    let fits = |&i: &usize| {
        taken += columns[i].width + 1;
        taken <= width + 1 || columns[i].rank == 0
    };
    let mut shown: Vec<usize> = ranked.into_iter().take_while(fits).collect();
    shown.sort_unstable();
    shown
}

/// Draws a table with the `columns` that fit; each row has a cell for every column.
fn draw_table<const N: usize>(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    columns: &[Column; N],
    rows: impl Iterator<Item = [String; N]>,
) {
    let shown = shown(columns, area.width);
    let rows =
        rows.map(|cells| Row::new(shown.iter().map(|&i| cells[i].clone()).collect::<Vec<_>>()));
    let widths = shown.iter().map(|&i| Constraint::Length(columns[i].width));
    let head = Row::new(shown.iter().map(|&i| columns[i].name));
    let table = Table::new(rows, widths)
        .header(head.style(Style::new().add_modifier(Modifier::BOLD)))
        .block(block(title));
    frame.render_widget(table, area);
}

fn draw_threads(frame: &mut Frame<'_>, area: Rect, before: &Sample, now: &Sample, span: Duration) {
    let parts = now.threads.primary_parts();
    let rows = now.threads.domains.iter().zip(parts).enumerate();
    let rows = rows.map(|(i, (domain, part))| {
        let handled = before.threads.domains.get(i).map_or(0, |old| old.handled);
        [
            domain.name.clone(),
            rate(domain.handled.saturating_sub(handled), span),
            short(domain.handled),
            format!("{:3.0} % {}", 100.0 * part, bar(part)),
            short(domain.steals),
            short(domain.waits),
            short(domain.parks),
            domain.lag.to_string(),
        ]
    });
    draw_table(frame, area, &threads_title(&now.stats), &THREADS, rows);
}

/// Also says what autoscaling decided last, and why.
fn threads_title(stats: &StackStats) -> String {
    let (active, trials) = (stats.membership.active, stats.scale_trials);
    match stats.scale_reason {
        None => "threads ".to_owned(),
        Some(reason) => format!("threads: {active} active, {reason}, {trials} trials "),
    }
}

fn draw_connections(
    frame: &mut Frame<'_>,
    area: Rect,
    before: &Sample,
    now: &Sample,
    span: Duration,
) {
    let title = format!("connections: {} ", now.connections.len());
    let rows = now.connections.iter().map(|one| {
        let same = |old: &&ConnectionStats| old.conn == one.conn && old.remote == one.remote;
        let old = before.connections.iter().find(same);
        let (received, acknowledged) = old.map_or((0, 0), |old| (old.received, old.acknowledged));
        [
            one.local.to_string(),
            one.remote.to_string(),
            format!("{:?}", one.state),
            short(u64::from(one.cwnd)),
            one.srtt
                .map_or_else(|| "-".to_owned(), |rtt| format!("{rtt:.0?}")),
            short(one.received),
            rate(one.received.saturating_sub(received), span),
            short(one.acknowledged),
            rate(one.acknowledged.saturating_sub(acknowledged), span),
        ]
    });
    draw_table(frame, area, &title, &CONNECTIONS, rows);
}

/// Formats a number in a few digits.
fn short(n: u64) -> String {
    const UNITS: [&str; 5] = ["", "k", "M", "G", "T"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 10_000.0 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.0}{}", UNITS[unit])
}

/// Formats `n` in `span` as a number per second.
fn rate(n: u64, span: Duration) -> String {
    short((n as f64 / span.as_secs_f64().max(1e-3)) as u64)
}

/// Formats a part of 1 as ten marks.
fn bar(part: f64) -> String {
    let full = (part * 10.0).round() as usize;
    "#".repeat(full.min(10)) + &".".repeat(10 - full.min(10))
}

/// Returns the frame as lines of text of at most `width` characters, without a terminal.
pub(crate) fn text(title: &str, before: &Sample, now: &Sample, width: u16) -> String {
    let lines = 9 + now.threads.channels.len() + now.threads.domains.len() + now.connections.len();
    let backend = TestBackend::new(width, lines as u16);
    // Drawing into memory cannot fail.
    let mut terminal = Terminal::new(backend).expect("memory is there");
    let drawn = terminal.draw(|frame| draw(frame, title, before, now));
    let buffer = drawn.expect("memory is there").buffer;
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(usize::from(width)).map(|line| line.concat());
    let lines = lines.map(|line| line.trim_end().to_owned() + "\n");
    lines.collect::<String>().trim_end().to_owned() + "\n"
}
