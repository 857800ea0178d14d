//! Bugs that the simulator plants, one at a time, to check that its checkers notice them.
//!
//! Each switches off one rule without which a cluster loses or repeats work in some rare history. A running server never
//! sets one.

/// A bug to plant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A new leader proposes before it has applied what its log held.
    ProposeBeforeReady,
    /// An entry of an earlier term that is committed in a later one is applied all the same.
    NoFence,
    /// Answers go to the oldest proposal in flight, whichever entry was committed.
    AnswerByPosition,
    /// A restarted leader goes on in its term.
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
    /// A cut-off leader keeps sending.
    NeverMute,
    /// Any node may stand for election at any time.
    AlwaysCampaign,
    /// That there is nothing to claim is answered without asking whether this node still leads.
    AnswerWithoutReadIndex,
    /// A follower applies one command less.
    SkipCommand,
}
