//! Commands on a terminal, with typed input.

use std::process::Command;

use crate::cli::client::Shop;

/// Waits for each text and types its reply, then reads to the end. Prints all output, and whether the terminal was
/// restored.
const SCRIPT: &str = r#"
import fcntl, json, os, pty, signal, struct, sys, termios
steps, width, height = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
main, terminal = pty.openpty()
fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
before = termios.tcgetattr(terminal)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for fd in (0, 1, 2): os.dup2(terminal, fd)
    os.execv(sys.argv[4], sys.argv[4:])
seen, at = b"", 0
for text, typed in steps:
    while text.encode() not in seen[at:]:
        seen += os.read(main, 4096)
    at = len(seen)
    if typed.startswith("signal "): os.kill(pid, getattr(signal, typed[7:]))
    else: os.write(main, typed.encode())
status = None
while status is None:
    done, code = os.waitpid(pid, os.WNOHANG)
    if done: status = os.waitstatus_to_exitcode(code)
    os.set_blocking(main, False)
    try: seen += os.read(main, 65536)
    except BlockingIOError: pass
restored = termios.tcgetattr(terminal) == before
# The kernel passes on what was written last at its own pace: read until nobody has the terminal open.
os.close(terminal)
os.set_blocking(main, True)
try:
    while more := os.read(main, 65536): seen += more
except OSError: pass
os.write(1, json.dumps([status, restored, seen.decode(errors="replace")]).encode())
"#;

/// What a command did on a terminal.
#[derive(Debug)]
pub struct Seen {
    pub code: i32,
    /// The terminal's settings are as before.
    pub restored: bool,
    pub text: String,
}

/// Runs a command on a terminal of this size. Each step waits for a text and types another, or sends a `signal NAME`.
pub fn on_terminal(shop: &Shop, args: &[&str], size: (u16, u16), steps: &[(&str, &str)]) -> Seen {
    let codeq = shop.command(args);
    let steps = serde_json::to_string(steps).unwrap();
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT, &steps, &size.0.to_string(), &size.1.to_string()]);
    python.arg(codeq.get_program()).args(codeq.get_args());
    python.envs(codeq.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = python.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (code, restored, text) = serde_json::from_slice(&output.stdout).unwrap();
    Seen { code, restored, text }
}
