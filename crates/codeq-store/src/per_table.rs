//! One value per table, looked up by the table's number.

use codeq_core::kv::Table;

/// One `T` per table.
#[derive(Debug, Clone)]
pub(crate) struct PerTable<T>(Vec<T>);

impl<T: Default> Default for PerTable<T> {
    fn default() -> Self {
        PerTable(Table::ALL.iter().map(|_| T::default()).collect())
    }
}

impl<T> PerTable<T> {
    /// Creates the values in table order; stops at the first error.
    pub(crate) fn try_new<E>(make: impl FnMut(Table) -> Result<T, E>) -> Result<Self, E> {
        Ok(PerTable(Table::ALL.into_iter().map(make).collect::<Result<_, E>>()?))
    }
}

// A table's number is its index in `Table::ALL`, from which the vector was built.
#[allow(clippy::indexing_slicing)]
impl<T> PerTable<T> {
    pub(crate) fn get(&self, table: Table) -> &T {
        &self.0[table as usize]
    }

    pub(crate) fn get_mut(&mut self, table: Table) -> &mut T {
        &mut self.0[table as usize]
    }
}
