//! One frame: what a stack tells of itself, laid out for a terminal or as text.

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

/// Connections that are asked for: more than a terminal has lines.
const MOST: usize = 200;

/// What a stack told at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Look {
    at: Instant,
    threads: dominoes::Snapshot,
    connections: Vec<ConnectionStats>,
    stats: StackStats,
}

impl Look {
    /// Asks `stack`.
    pub(crate) fn at(stack: &Stack) -> Look {
        let mut connections = stack.connections(MOST);
        // Those that move most stand first.
        connections.sort_by_key(|one| core::cmp::Reverse(one.received + one.acknowledged));
        Look {
            at: Instant::now(),
            threads: stack.snapshot(),
            connections,
            stats: stack.stats(),
        }
    }
}

/// Draws what happened between two looks.
pub(crate) fn draw(frame: &mut Frame<'_>, title: &str, before: &Look, now: &Look) {
    let threads = now.threads.domains.len() as u16 + 3;
    let channels = now.threads.channels.len() as u16;
    let [head, log, upper, lower] = Layout::vertical([
        Constraint::Length(2),
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

fn summary(title: &str, before: &Look, now: &Look, span: Duration) -> Paragraph<'static> {
    let (pump, state) = (&now.stats.pump, &now.stats.state);
    let frames = rate(pump.frames - before.stats.pump.frames, span);
    let text = vec![
        Line::styled(title.to_owned(), Style::new().add_modifier(Modifier::BOLD)),
        Line::raw(format!(
            "{frames} frames/s in, {} segments in {} runs, {} opened, {} closed, {} dropped by checksum",
            short(pump.segments),
            short(pump.runs),
            state.opened,
            state.closed,
            state.bad_checksum,
        )),
    ];
    Paragraph::new(text)
}

fn block(title: &str) -> Block<'_> {
    Block::new().borders(Borders::TOP).title(title)
}

fn head(names: &'static [&'static str]) -> Row<'static> {
    Row::new(names.iter().copied()).style(Style::new().add_modifier(Modifier::BOLD))
}

fn draw_threads(frame: &mut Frame<'_>, area: Rect, before: &Look, now: &Look, span: Duration) {
    let parts = now.threads.primary_parts();
    let rows = now.threads.domains.iter().zip(parts).enumerate();
    let rows = rows.map(|(i, (domain, part))| {
        let handled = before.threads.domains.get(i).map_or(0, |old| old.handled);
        Row::new([
            domain.name.clone(),
            rate(domain.handled.saturating_sub(handled), span),
            short(domain.handled),
            format!("{:3.0} % {}", 100.0 * part, bar(part)),
            short(domain.steals),
            short(domain.waits),
            short(domain.parks),
            domain.lag.to_string(),
        ])
    });
    let widths = [16, 12, 10, 20, 8, 8, 8, 6].map(Constraint::Length);
    let names = &[
        "thread",
        "requests/s",
        "requests",
        "primary",
        "steals",
        "waits",
        "parks",
        "lag",
    ];
    let table = Table::new(rows, widths)
        .header(head(names))
        .block(block("threads "));
    frame.render_widget(table, area);
}

fn draw_connections(frame: &mut Frame<'_>, area: Rect, before: &Look, now: &Look, span: Duration) {
    let title = format!("connections: {} ", now.connections.len());
    let rows = now.connections.iter().map(|one| {
        let same = |old: &&ConnectionStats| old.conn == one.conn && old.remote == one.remote;
        let old = before.connections.iter().find(same);
        let (received, acknowledged) = old.map_or((0, 0), |old| (old.received, old.acknowledged));
        Row::new([
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
        ])
    });
    let widths = [21, 21, 12, 8, 8, 10, 10, 10, 10].map(Constraint::Length);
    let names = &[
        "local",
        "remote",
        "state",
        "cwnd",
        "rtt",
        "octets in",
        "in/s",
        "octets out",
        "out/s",
    ];
    let table = Table::new(rows, widths)
        .header(head(names))
        .block(block(&title));
    frame.render_widget(table, area);
}

/// A number in a few digits.
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

/// So many in this time, in a second.
fn rate(n: u64, span: Duration) -> String {
    short((n as f64 / span.as_secs_f64().max(1e-3)) as u64)
}

/// A part of 1 as ten marks.
fn bar(part: f64) -> String {
    let full = (part * 10.0).round() as usize;
    "#".repeat(full.min(10)) + &".".repeat(10 - full.min(10))
}

/// The frame as lines of text, without a terminal.
pub(crate) fn text(title: &str, before: &Look, now: &Look) -> String {
    let lines = 8 + now.threads.domains.len() + now.connections.len();
    let backend = TestBackend::new(124, lines as u16);
    // Drawing into memory has nothing to fail at.
    let mut terminal = Terminal::new(backend).expect("memory is there");
    let drawn = terminal.draw(|frame| draw(frame, title, before, now));
    let buffer = drawn.expect("memory is there").buffer;
    let width = usize::from(buffer.area.width);
    let cells: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
    let lines = cells.chunks(width).map(|line| line.concat());
    let lines = lines.map(|line| line.trim_end().to_owned() + "\n");
    lines.collect::<String>().trim_end().to_owned() + "\n"
}
