//! `codeq profile`: the URL and token of each environment.

use std::process::ExitCode;

use clap::Subcommand;
use serde::Serialize;

use crate::cli::{Connection, Done, Noun, Profile, Profiles, Show, ended, profile_name, talk};

#[derive(Subcommand)]
pub enum Verb {
    /// Add a profile, or replace one.
    #[command(after_help = "\
The first profile is selected at once. Profiles are kept in codeq/profiles.json below XDG_CONFIG_HOME or
~/.config, readable only by you.

Examples:
  codeq profile add prod --url https://codeq.example.com --token-file prod.token
  codeq profile add dev --url http://127.0.0.1:8080 --token dev-token --use")]
    Add {
        /// Name of the profile.
        #[arg(value_parser = profile_name)]
        name: String,
        /// Address of the worker stream, if it is not port 9091 of the URL's host.
        #[arg(long, value_name = "URL")]
        worker_url: Option<String>,
        /// Select it.
        #[arg(long = "use")]
        select: bool,
    },
    /// Select the profile that commands use.
    #[command(after_help = "Example:\n  codeq profile use prod")]
    Use {
        /// Name of the profile.
        #[arg(value_name = "PROFILE")]
        name: String,
    },
    /// List the profiles. Tokens are not shown.
    #[command(after_help = "Example:\n  codeq profile list")]
    List,
    /// Remove a profile.
    #[command(after_help = "Example:\n  codeq profile remove staging")]
    Remove {
        /// Name of the profile.
        #[arg(value_name = "PROFILE")]
        name: String,
    },
}

#[derive(Serialize)]
struct Listed<'a> {
    name: &'a str,
    current: bool,
    url: &'a str,
    token: bool,
}

impl Show for Listed<'_> {
    const COLUMNS: &'static [&'static str] = &["CURRENT", "NAME", "URL", "TOKEN"];

    fn cells(&self) -> Vec<String> {
        let current = if self.current { "*" } else { "" };
        let token = if self.token { "yes" } else { "no" };
        [current, self.name, self.url, token].map(str::to_owned).to_vec()
    }

    fn name(&self) -> String {
        self.name.to_owned()
    }
}

pub fn run(noun: Noun<Verb>, top: &Connection) -> ExitCode {
    let connection = noun.connection.over(top);
    ended(match noun.verb {
        Verb::Add { name, worker_url, select } => add(&connection, name, worker_url, select),
        Verb::Use { name } => select(&name),
        Verb::List => list(&connection),
        Verb::Remove { name } => remove(&name),
    })
}

fn add(connection: &Connection, name: String, worker_url: Option<String>, select: bool) -> Done {
    let mut profile = connection.as_profile()?;
    profile.worker_url = worker_url;
    let selected = Profiles::edit(|profiles| {
        let select = select || profiles.profiles.is_empty();
        if select {
            profiles.current = Some(name.clone());
        }
        profiles.profiles.insert(name.clone(), profile);
        Ok(if select { " and selected" } else { "" })
    })?;
    talk(&format!("profile {name} added{selected}"));
    Ok(())
}

fn select(name: &str) -> Done {
    let url = Profiles::edit(|profiles| {
        let url = profiles.get(name)?.url.clone();
        profiles.current = Some(name.to_owned());
        Ok(url)
    })?;
    talk(&format!("profile {name} selected: {url}"));
    Ok(())
}

fn list(connection: &Connection) -> Done {
    let profiles = Profiles::load()?;
    let listed = |(name, profile)| {
        let (name, profile): (&String, &Profile) = (name, profile);
        let current = profiles.current.as_ref() == Some(name);
        Listed { name, current, url: &profile.url, token: !profile.token.is_empty() }
    };
    let items: Vec<Listed<'_>> = profiles.profiles.iter().map(listed).collect();
    if items.is_empty() {
        talk("no profiles: add one with `codeq profile add NAME --url URL --token-file FILE`");
    }
    connection.output().items(&items)
}

fn remove(name: &str) -> Done {
    Profiles::edit(|profiles| {
        profiles.get(name)?;
        profiles.profiles.remove(name);
        profiles.current.take_if(|current| current == name);
        Ok(())
    })?;
    talk(&format!("profile {name} removed"));
    Ok(())
}
