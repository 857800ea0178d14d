//! `codeq completion`: scripts that make a shell complete commands, options, queues and profiles.
//!
//! The scripts ask the binary, which knows its own commands: `codeq completion -- codeq queue get re`.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Arg, Command};

use crate::cli::{Connection, Profiles};

/// The shell must not hang when the server does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

#[derive(clap::Args)]
#[command(after_help = "\
The script asks codeq itself, so it stays correct after an upgrade. It also completes the queues of the selected
server, and profiles.

Examples:
  echo 'source <(codeq completion bash)' >> ~/.bashrc
  echo 'source <(codeq completion zsh)' >> ~/.zshrc
  codeq completion fish > ~/.config/fish/completions/codeq.fish")]
pub struct Args {
    /// The shell.
    #[arg(value_enum, required_unless_present = "words")]
    shell: Option<Shell>,
    /// The words so far. The last one is to be completed.
    #[arg(last = true, hide = true)]
    words: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

const BASH: &str = r#"_codeq() {
    local IFS=$'\n'
    COMPREPLY=($(codeq completion -- "${COMP_WORDS[@]:0:COMP_CWORD+1}" 2>/dev/null))
}
complete -o default -F _codeq codeq
"#;

const ZSH: &str = r#"#compdef codeq
_codeq() {
    local -a found
    found=("${(@f)$(codeq completion -- "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    compadd -a found || _files
}
compdef _codeq codeq
"#;

const FISH: &str = r#"complete -c codeq -a '(codeq completion -- (commandline -opc) (commandline -ct) 2>/dev/null)'
"#;

pub fn run(args: &Args, mut command_line: Command) -> ExitCode {
    match args.shell {
        Some(Shell::Bash) => print!("{BASH}"),
        Some(Shell::Zsh) => print!("{ZSH}"),
        Some(Shell::Fish) => print!("{FISH}"),
        None => {
            // Passes options of a noun on to its verbs.
            command_line.build();
            for found in complete(&command_line, &args.words) {
                println!("{found}");
            }
        }
    }
    ExitCode::SUCCESS
}

/// What the last word may become.
fn complete(top: &Command, words: &[String]) -> Vec<String> {
    let Some((begun, before)) = words.split_last() else { return Vec::new() };
    // The first word is the program.
    let before = before.get(1..).unwrap_or_default();
    // Bash makes `--queue=re` three words.
    let (begun, before) = match (begun.as_str(), before.split_last()) {
        ("=", _) => ("", before),
        (begun, Some((equals, before))) if equals == "=" => (begun, before),
        (begun, _) => (begun, before),
    };
    let mut command = top;
    let mut value_of: Option<&Arg> = None;
    for word in before {
        let takes_word = value_of.take().is_some();
        if word == "=" {
            continue;
        }
        if let Some(option) = word.strip_prefix('-') {
            value_of = option_named(command, option).filter(|arg| arg.get_action().takes_values());
        } else if !takes_word && let Some(verb) = command.find_subcommand(word) {
            command = verb;
        }
    }
    let found = match value_of {
        Some(option) => values(option, before),
        None if begun.starts_with('-') => options(command),
        None => {
            let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            let verbs = verbs.map(|verb| verb.get_name().to_owned());
            let first = command.get_positionals().take(1);
            verbs.chain(first.flat_map(|arg| values(arg, before))).collect()
        }
    };
    found.into_iter().filter(|name| name.starts_with(begun) && is_plain(name)).collect()
}

/// Whether the shell takes the name as it is. Names come from a server.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '/' | '@'))
}

/// The option of a word such as `-url` (of `--url`) or `o` (of `-o`). None if it carries its value: `--url=…`.
fn option_named<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| match word.strip_prefix('-') {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short().is_some_and(|short| word.chars().eq([short])),
    })
}

fn options(command: &Command) -> Vec<String> {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    shown.filter_map(|arg| Some(format!("--{}", arg.get_long()?))).collect()
}

/// The values of an option or positional argument, as far as they are known.
fn values(arg: &Arg, before: &[String]) -> Vec<String> {
    let name = arg.get_value_names().and_then(|names| names.first());
    match name.map(|name| name.as_str()) {
        Some("QUEUE" | "QUEUE,…") => queues(before),
        Some("PROFILE") => {
            let known = Profiles::load().map(|profiles| profiles.profiles).unwrap_or_default();
            known.into_keys().collect()
        }
        _ => {
            let possible = arg.get_possible_values();
            possible.iter().map(|value| value.get_name().to_owned()).collect()
        }
    }
}

/// The queues of the server that the words select. None if it does not answer at once.
fn queues(before: &[String]) -> Vec<String> {
    let Ok(session) = connection(before).session() else { return Vec::new() };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Vec::new() };
    let asked = async { tokio::time::timeout(ANSWER_TIMEOUT, session.http.queues()).await };
    match runtime.block_on(asked) {
        Ok(Ok(queues)) => queues.into_iter().map(|queue| queue.stats.command).collect(),
        _ => Vec::new(),
    }
}

/// The options of a connection among the words.
fn connection(words: &[String]) -> Connection {
    #[derive(clap::Parser)]
    #[command(ignore_errors = true)]
    struct Only {
        #[command(flatten)]
        connection: Connection,
    }
    let words = words.iter().map(String::as_str).filter(|word| *word != "=");
    let mut given = vec!["codeq"];
    let mut takes_value = false;
    for word in words {
        let option = word.split('=').next().unwrap_or_default();
        let known =
            ["--url", "--token", "--token-file", "--ca-file", "--profile"].contains(&option);
        if known || takes_value {
            given.push(word);
        }
        takes_value = known && !word.contains('=');
    }
    <Only as clap::Parser>::try_parse_from(given).map(|only| only.connection).unwrap_or_default()
}
