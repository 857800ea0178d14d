//! `codeq supervise`: stands between `codeq worker run` and its program, so that nothing outlives a worker that is killed.
//!
//! The kernel signals this process when the worker dies. It then kills its process group: the program, and whatever the
//! program has started.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitCode, ExitStatus};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, setrlimit,
};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::talk;

/// What the kernel sends when the worker is gone.
const WORKER_DIED: Signal = Signal::USR1;
/// Exit code if the program could not be started, as in shells.
const NOT_STARTED: u8 = 127;

#[derive(clap::Args)]
pub struct Args {
    /// Process id of the worker.
    #[arg(long)]
    worker: i32,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// The command that runs a program under supervision. It must be started by a thread that lives as long as the worker:
/// the kernel watches the thread.
pub fn command(program: &[OsString]) -> Command {
    use std::os::unix::process::CommandExt;
    // This works even after an upgrade has replaced the file.
    let mut command = Command::new("/proc/self/exe");
    command.arg0("codeq").args(["supervise", "--worker", &std::process::id().to_string(), "--"]);
    command.args(program);
    command
}

/// Runs the program and exits as it does.
pub fn run(args: &Args) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime.and_then(|runtime| runtime.block_on(supervise(args))) {
        Ok(status) => exit_as(status),
        Err(error) => {
            let name = args.program.first().cloned().unwrap_or_default();
            talk(&format!("cannot run {}: {error}", name.display()));
            ExitCode::from(NOT_STARTED)
        }
    }
}

async fn supervise(args: &Args) -> std::io::Result<ExitStatus> {
    let mut died = signal(SignalKind::user_defined1())?;
    // Signals to the group are for the program. What this process catches has its default effect in the program.
    let _caught = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()]
        .map(|kind| signal(kind));
    set_parent_process_death_signal(Some(WORKER_DIED))?;
    // If the worker died before that, another process has adopted this one.
    if getppid() != Pid::from_raw(args.worker) {
        return Err(std::io::Error::other("its worker has died"));
    }
    let (program, arguments) = args.program.split_first().ok_or(std::io::ErrorKind::NotFound)?;
    let child = Command::new(program).args(arguments).spawn()?;
    let mut ended = tokio::task::spawn_blocking(move || wait(child));
    tokio::select! {
        status = &mut ended => status?,
        _ = died.recv() => {
            // Ends this process as well.
            kill_process_group(getpid(), Signal::KILL)?;
            ended.await?
        }
    }
}

fn wait(mut child: Child) -> std::io::Result<ExitStatus> {
    child.wait()
}

/// Ends as the program did: with its exit code, or by the same signal.
fn exit_as(status: ExitStatus) -> ExitCode {
    if let Some(code) = status.code() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    let number = status.signal().unwrap_or_default();
    if let Some(signal) = Signal::from_named_raw(number) {
        // One core dump is enough.
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        let _ = setrlimit(Resource::Core, none);
        let _ = kill_process(getpid(), signal);
    }
    // This process catches the signal, so it exits with 128 plus the signal's number, as shells do.
    ExitCode::from(u8::try_from(number.saturating_add(128)).unwrap_or(1))
}
