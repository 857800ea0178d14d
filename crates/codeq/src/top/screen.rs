//! Sets the terminal up for a dashboard: a second screen, no cursor, keys as they are pressed. Restores it on drop and
//! after a panic.

use std::io::{IsTerminal, Read, Write};

use rustix::termios::{
    InputModes, LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr,
};
use tokio::sync::mpsc;

/// Switches to a second screen without a cursor, and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// The size to assume if stdout is not a terminal.
const DEFAULT_WIDTH: usize = 100;
const DEFAULT_HEIGHT: usize = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Quit,
    Left,
    Right,
    Up,
    Down,
    PageUp,
    PageDown,
    Reverse,
}

pub struct Screen {
    /// Bold, reverse and red may be used.
    pub emphasis: bool,
    /// The terminal settings to restore, if stdin is a terminal.
    before: Option<Termios>,
}

impl Screen {
    pub fn open() -> Screen {
        let before = tcgetattr(std::io::stdin()).ok();
        if let Some(before) = &before {
            let mut keys = before.clone();
            // No line editing, no echo, and Ctrl-C as a key.
            keys.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG);
            keys.input_modes.remove(InputModes::IXON);
            // If that fails, keys need Enter.
            let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, &keys);
        }
        let (hook, saved) = (std::panic::take_hook(), before.clone());
        std::panic::set_hook(Box::new(move |panic| {
            restore(saved.as_ref());
            hook(panic);
        }));
        print!("{ENTER}");
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen { emphasis: !plain, before }
    }

    /// The keys that are pressed, read on a thread that ends with the process.
    pub fn keys(&self) -> mpsc::Receiver<Key> {
        let (sender, keys) = mpsc::channel(16);
        if std::io::stdin().is_terminal() {
            std::thread::spawn(move || {
                let mut bytes = [0; 64];
                while let Ok(read @ 1..) = std::io::stdin().read(&mut bytes) {
                    for key in parse(bytes.get(..read).unwrap_or_default()) {
                        if sender.blocking_send(key).is_err() {
                            return;
                        }
                    }
                }
            });
        } else {
            // Without a keyboard, the receiver must wait for ever instead of ending.
            std::mem::forget(sender);
        }
        keys
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore(self.before.as_ref());
    }
}

fn restore(before: Option<&Termios>) {
    print!("{LEAVE}");
    let _ = std::io::stdout().flush();
    if let Some(before) = before {
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Now, before);
    }
}

/// The keys in one chunk of input. Unknown bytes are skipped.
fn parse(mut bytes: &[u8]) -> Vec<Key> {
    const KEYS: [(&[u8], Key); 16] = [
        (b"\x1b[A", Key::Up),
        (b"\x1b[B", Key::Down),
        (b"\x1b[C", Key::Right),
        (b"\x1b[D", Key::Left),
        (b"\x1bOA", Key::Up),
        (b"\x1bOB", Key::Down),
        (b"\x1bOC", Key::Right),
        (b"\x1bOD", Key::Left),
        (b"\x1b[5~", Key::PageUp),
        (b"\x1b[6~", Key::PageDown),
        (b"k", Key::Up),
        (b"j", Key::Down),
        (b"r", Key::Reverse),
        (b"q", Key::Quit),
        (b"Q", Key::Quit),
        (b"\x03", Key::Quit),
    ];
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let known = KEYS.iter().find(|(sequence, _)| bytes.starts_with(sequence));
        let length = known.map_or(1, |(sequence, _)| sequence.len());
        found.extend(known.map(|(_, key)| *key));
        bytes = bytes.get(length..).unwrap_or_default();
    }
    found
}

pub fn width() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0).unwrap_or(DEFAULT_WIDTH)
}

pub fn height() -> usize {
    let size = tcgetwinsize(std::io::stdout()).ok();
    size.map(|size| usize::from(size.ws_row)).filter(|height| *height > 0).unwrap_or(DEFAULT_HEIGHT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_recognised() {
        assert_eq!(parse(b"\x1b[C\x1b[Aq"), [Key::Right, Key::Up, Key::Quit]);
        assert_eq!(parse(b"x\x03"), [Key::Quit]);
        assert_eq!(parse(b""), []);
    }
}
