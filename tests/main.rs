//! Tests of the whole stack that need no privileges.
