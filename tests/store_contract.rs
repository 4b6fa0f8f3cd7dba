//! One contract for every store: in memory, on an embedded DynamoDB, and on a server that somebody else wrote.
//!
//! The cases are in `store_contract/`: `commits`, `generations` and `kept` hold for every store, `table` for the DynamoDB table
//! alone. Each makes its own store, so all run at once.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/ddb.rs"]
mod ddb;

#[path = "store_contract/archive.rs"]
mod archive;
#[path = "store_contract/bed.rs"]
mod bed;
#[path = "store_contract/commits.rs"]
mod commits;
#[path = "store_contract/generations.rs"]
mod generations;
#[path = "store_contract/kept.rs"]
mod kept;
#[path = "store_contract/summaries.rs"]
mod summaries;
#[path = "store_contract/table.rs"]
mod table;

/// The cases of the table alone.
mod table_cases {
    pub use crate::summaries::*;
    pub use crate::table::*;
}

/// The cases by name, for the macro below.
mod cases {
    pub use crate::archive::*;
    pub use crate::commits::*;
    pub use crate::generations::*;
    pub use crate::kept::*;
}

macro_rules! contract {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test] async fn $case() { crate::cases::$case(&crate::bed::Bed::memory()).await })*
        }

        #[cfg(feature = "local")]
        mod embedded {
            $(#[tokio::test] async fn $case() {
                crate::cases::$case(&crate::bed::Bed::table(&crate::ddb::shared_url()).await).await
            })*
        }

        mod server {
            $(#[tokio::test] async fn $case() {
                if let Some(url) = crate::ddb::server_url() {
                    crate::cases::$case(&crate::bed::Bed::table(&url).await).await
                }
            })*
        }
    };
}

macro_rules! table_contract {
    ($($case:ident),* $(,)?) => {
        #[cfg(feature = "local")]
        mod embedded_table {
            $(#[tokio::test] async fn $case() { crate::table_cases::$case(&crate::ddb::shared_url()).await })*
        }

        mod server_table {
            $(#[tokio::test] async fn $case() {
                if let Some(url) = crate::ddb::server_url() {
                    crate::table_cases::$case(&url).await
                }
            })*
        }
    };
}

contract! {
    a_thread_is_made_once_and_read_back_whole,
    a_thread_that_is_not_there_is_empty,
    what_a_thread_is_never_changes,
    i6_a_commit_counts_only_at_its_head_and_log_and_while_open,
    i6_a_lost_race_writes_nothing,
    i6_a_commit_that_was_loaded_before_a_redelivery_was_marked_loses_its_race,
    i6_of_many_writers_one_wins,
    i2_the_same_commit_sent_twice_is_applied_once,
    i2_an_input_that_was_processed_is_refused_whole,
    i2_the_dedup_rows_of_results_never_expire_and_others_do,
    i8_items_come_back_in_order_and_to_the_byte,
    i8_a_rewind_hides_and_a_fork_inherits_and_nothing_is_deleted,
    f36_results_of_400_kb_and_more_are_kept_whole,
    f68_children_are_made_with_their_parents_commit_or_not_at_all,
    f36_a_thread_of_2_mb_is_loaded_whole,
    i1_dead_letters_are_kept_whole_and_once_until_they_are_forgotten,
    parked_inputs_are_kept_in_order_and_released_once,
    subscriptions_start_and_end,
    choices_views_and_manifests_are_kept,
    a_claim_check_of_1_mb_is_kept_and_put_again,
    metadata_is_kept_to_the_byte,
    a_hundred_actions_fit_and_one_more_is_invalid,
    commits_that_break_a_rule_are_refused_before_they_are_sent,
    odd_ids_neither_meet_nor_fail,
    threads_are_listed_newest_first,
    a_name_is_whose_who_claims_it_first_and_threads_are_listed_by_owner,
    i2_a_choice_is_closed_by_the_commit_that_answers_it,
    the_last_cancel_request_is_loaded_with_its_thread,
    c9_c13_a_generation_hides_items_from_requests_and_from_nothing_else,
    c10_a_slice_and_a_compaction_overwrite_nothing_of_each_other,
    c10_c16_a_compaction_counts_only_where_it_was_planned,
    c11_c82_sent_twice_it_is_done_once_and_of_two_compactors_one_wins,
    c27_attempts_are_stored_and_leave_the_summary_as_it_is,
    c14_c15_a_rewind_keeps_the_generation_it_is_told_and_numbers_anew,
    a_clients_run_is_made_once_changed_until_it_ends_and_shown_in_order,
    i8_a_log_that_was_left_is_read_with_what_it_inherits,
    a_thread_is_made_with_branches_that_only_inherit,
    the_log_of_a_snapshot_is_written_again_without_effect,
    a_fork_is_noted_with_those_it_inherits_from,
    redaction_rewrites_every_text_of_a_thread_and_no_other,
    redaction_finds_what_a_run_ended_with,
    erasure_leaves_a_closed_name_and_what_others_inherit,
    nobody_begins_to_inherit_of_what_is_about_to_be_erased,
    what_was_redacted_of_a_snapshot_stays_so_when_it_is_written_again,
    the_oldest_threads_are_listed_first_and_only_those_before_a_time,
}

table_contract! {
    r21_requests_are_loaded_with_the_newest_state_alone_and_everything_else_with_all,
    i8_unknown_attributes_and_rows_survive,
    i7_rows_that_cannot_be_read_are_placeholders,
    a_missing_item_is_incomplete_and_one_that_comes_late_is_not,
    i8_items_beyond_head_are_neither_shown_nor_written_over,
    round_trips_are_as_few_as_the_design_says,
    i2_a_commit_whose_answer_was_lost_is_done,
    i6_a_lost_race_after_a_lost_answer_is_a_lost_race,
    a_missing_table_is_refused_and_a_dead_server_unavailable,
    c13_of_a_thread_of_100_000_items_no_more_rows_are_read_than_of_one_of_1_000,
    c11_a_compaction_whose_answer_was_lost_is_done_and_one_that_came_too_late_is_not,
    i7_a_summary_that_cannot_be_read_stands_for_nothing_and_unknown_attributes_survive,
}

#[cfg(feature = "local")]
#[tokio::test]
async fn i2_a_commit_sent_again_after_a_restart_is_known_by_its_token() {
    table::sent_again_after_a_restart().await;
}
