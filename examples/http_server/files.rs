//! The served folder: maps a path to a file, reads files and replaces them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::Outcome;
use crate::http::{Answer, CHUNK, Content, Status};

/// The real name of the served folder; all served files are in it.
pub(crate) fn open_root(root: &Path) -> Outcome<PathBuf> {
    match fs::canonicalize(root) {
        Ok(root) if root.is_dir() => Ok(root),
        Ok(_) => Err(format!("{} is no folder", root.display()).into()),
        Err(error) => Err(format!("{}: {error}", root.display()).into()),
    }
}

/// The path of a request relative to the root; refuses paths that leave it.
fn relative(path: &str) -> Result<PathBuf, Status> {
    let path = PathBuf::from(percent_decode(path.strip_prefix('/').ok_or(Status::BAD)?)?);
    let stays = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    if path.components().all(stays) {
        Ok(path)
    } else {
        Err(Status::FORBIDDEN)
    }
}

/// The real name of an existing file or folder.
fn find(root: &Path, path: &str) -> Result<PathBuf, Status> {
    let found = fs::canonicalize(root.join(relative(path)?))?;
    if found.starts_with(root) {
        Ok(found)
    } else {
        Err(Status::FORBIDDEN)
    }
}

/// The real name of the folder for a new file, and the file's name in it.
pub(crate) fn place(root: &Path, path: &str) -> Result<(PathBuf, PathBuf), Status> {
    let relative = relative(path)?;
    let (Some(parent), Some(name)) = (relative.parent(), relative.file_name()) else {
        return Err(Status::CONFLICT);
    };
    let folder = match fs::canonicalize(root.join(parent)) {
        Ok(folder) if folder.starts_with(root) => folder,
        Ok(_) => return Err(Status::FORBIDDEN),
        // Does not create folders.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(Status::CONFLICT),
        Err(error) => return Err(error.into()),
    };
    if path.ends_with('/') || folder.join(name).is_dir() {
        return Err(Status::CONFLICT);
    }
    Ok((folder, PathBuf::from(name)))
}

fn percent_decode(text: &str) -> Result<String, Status> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = digit().zip(digit()).ok_or(Status::BAD)?;
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(Status::BAD),
    }
}

/// Returns the content of a file, or a list of a folder.
pub(crate) fn get(root: &Path, path: &str) -> Result<Answer, Status> {
    let mut path = find(root, path)?;
    if path.is_dir() {
        match fs::canonicalize(path.join("index.html")) {
            Ok(index) if index.starts_with(root) => path = index,
            _ => return list(&path),
        }
    }
    // Opening a pipe could block for ever.
    if !path.is_file() {
        return Err(Status::FORBIDDEN);
    }
    let file = File::open(&path)?;
    let len = file.metadata()?.len();
    let kind = match path.extension().and_then(|extension| extension.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("txt" | "md") => "text/plain; charset=utf-8",
        Some("css") => "text/css",
        Some("js") => "text/javascript",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("jpg" | "jpeg") => "image/jpeg",
        _ => "application/octet-stream",
    };
    Ok(Answer {
        status: Status::OK,
        kind,
        content: Content::Bytes(Box::new(file), len),
    })
}

/// The names in a folder, one per line.
fn list(path: &Path) -> Result<Answer, Status> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let slash = if entry.file_type()?.is_dir() { "/" } else { "" };
        names.push(format!("{}{slash}\n", entry.file_name().to_string_lossy()));
    }
    names.sort();
    Ok(Answer::text(Status::OK, names.concat()))
}

/// A file that is written under a temporary name, and renamed when it is complete.
pub(crate) struct Put {
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl Put {
    pub(crate) fn begin(folder: &Path, name: &Path) -> Result<Put, Status> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let part = format!(
            ".put-{}-{}.part",
            std::process::id(),
            NEXT.fetch_add(1, Relaxed)
        );
        let part = folder.join(part);
        Ok(Put {
            file: File::create_new(&part)?,
            part,
            path: folder.join(name),
        })
    }

    pub(crate) fn finish(self, body: &mut impl Read) -> Result<Answer, Status> {
        let mut file = BufWriter::with_capacity(CHUNK, &self.file);
        io::copy(body, &mut file)?;
        file.flush()?;
        drop(file);
        let status = if self.path.exists() {
            Status::NO_CONTENT
        } else {
            Status::CREATED
        };
        fs::rename(&self.part, &self.path)?;
        Ok(Answer::text(status, String::new()))
    }
}

impl Drop for Put {
    fn drop(&mut self) {
        // A completed file no longer has this name.
        let _ = fs::remove_file(&self.part);
    }
}
