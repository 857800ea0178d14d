//! Bugs that the simulator plants, one at a time, to check that its checkers notice them.
//!
//! Each disables one rule that prevents a cluster from losing or repeating work in some rare sequence of events. A
//! server never sets one.

/// A bug to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A new leader proposes before it has applied what its log held.
    ProposeBeforeReady,
    /// An entry is applied although a leader wrote it in a later term than it was proposed in.
    NoFence,
    /// Answers go to the oldest proposal in flight, whichever entry was committed.
    AnswerByPosition,
    /// A restarted leader continues to lead in its old term.
    KeepCommittedVote,
    /// The log is purged before the rows of another node are installed.
    PurgeBeforeInstall,
    /// A log that lost its end below a checkpoint is accepted.
    AcceptLostTail,
    /// A change of the members is not made durable when it is applied.
    ForgetMembership,
    /// A new leader trusts its own wall clock.
    TrustWallClock,
    /// A new leader takes the highest estimate of the time instead of the latest note.
    HighestEstimate,
    /// A leader without a majority keeps sending.
    NeverMute,
    /// Any node may stand for election at any time.
    AlwaysCampaign,
    /// "Nothing to claim" is answered without confirming that this node still leads.
    AnswerWithoutReadIndex,
    /// A follower skips what one shard has in every 61st entry.
    SkipCommand,
    /// Entries count as durable before the log is synced.
    AckBeforeSync,
    /// Votes are kept in memory only.
    ForgetVote,
    /// A checkpoint writes the first shard only.
    CheckpointApart,
    /// A checkpoint claims to include everything in the log, committed or not.
    CheckpointAhead,
    /// Rows that an earlier checkpoint could not write count as those of the next one.
    CheckpointOld,
    /// Every new leader proposes its own settings.
    ConfigureAtStart,
    /// A change of the members is made durable only after a checkpoint includes it.
    LateMembership,
    /// A proposal whose fate is unknown is refused, as if nothing had happened.
    RefuseLost,
    /// Neither leaders nor followers check whether the disk is full.
    IgnoreFullDisk,
    /// Some transitions of tasks are reported to observers twice.
    RepeatTransitions,
    /// Some transitions of tasks are not reported to observers.
    SkipTransitions,
    /// A new leader trusts any note of the time, whatever was stamped since, and wall clocks if there is none.
    StaleNote,
}
