//! Configure: change the shard's defaults, through the log like every other change.

use crate::kv::Kv;
use crate::reply::Reply;
use crate::settings::Settings;
use crate::step::Step;

impl<K: Kv> Step<'_, K> {
    pub(crate) fn configure(&mut self, settings: &Settings) -> Reply {
        if let Err(rejection) = settings.check() {
            return Reply::Rejected(rejection);
        }
        if self.state.meta.settings != *settings {
            self.state.meta.settings = settings.clone();
            self.changed = true;
        }
        Reply::Done
    }
}
