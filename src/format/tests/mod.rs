//! Is what the format writes read back, and everything else refused?

use super::*;

mod damage;
mod rules;
mod samples;
mod sections;
mod snapshots;
mod written;
