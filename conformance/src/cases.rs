//! The list of cases. What each does is in its group's file; what it needs is said here, beside its name.

use crate::case::{Case, need};
use ibv_core::IbvDomainImpl;

mod atomics;
mod batch;
mod capabilities;
mod channel;
mod completion;
mod errors;
mod handshake;
mod immediate;
mod lifecycle;
mod memory;
mod ordering;
mod read;
mod root_cause;
mod send_recv;
mod sharing;
mod sizes;
mod teardown;
mod write;

/// What every case file uses.
pub(crate) mod prelude {
    pub(crate) use crate::{
        ctx::{Ctx, Link, Region, Say, depth_of, ensure, ensure_eq, ensure_pattern, ids_of, list, wait_on},
        pattern::pattern,
        peer::{PeerQp, PeerRegion, WireOp, WireRequest},
        transfer::{Part, Transfer, Way},
    };
    pub(crate) use ibv_core::{IbvConfig, IbvDomainImpl, IbvQueuePair};

    /// What a case returns: `Err` says what was seen and what was due.
    pub(crate) type Done = Result<(), String>;

    /// The configuration with room for two ranges.
    pub(crate) fn several_ranges<D: IbvDomainImpl>(c: &Ctx<'_, D>) -> IbvConfig {
        let mut config = c.config();
        config.max_send_sge = config.max_send_sge.max(2);
        if c.caps().max_recv_sge >= 2 && c.b.caps.max_recv_sge >= 2 {
            config.max_recv_sge = config.max_recv_sge.max(2);
        }
        config
    }
}

macro_rules! flag {
    () => {
        false
    };
    (one_process) => {
        true
    };
}

// The leading `$` is passed in so that the generated macro can have its own `$fixture`.
macro_rules! case_list {
    ($d:tt; $($group:ident { $($name:ident [$($need:ident)*] $($flag:ident)?;)* })*) => {
        /// Every case, in running order.
        pub(crate) fn all<D: IbvDomainImpl>() -> Vec<Case<D>> {
            vec![$($(Case {
                name: stringify!($name),
                group: stringify!($group),
                needs: |_caps| { $(need::$need(_caps)?;)* Ok(()) },
                one_process: flag!($($flag)?),
                body: $group::$name::<D>,
            },)*)*]
        }

        /// Every case's name and group.
        pub(crate) fn names() -> Vec<(&'static str, &'static str)> {
            vec![$($((stringify!($name), stringify!($group)),)*)*]
        }

        /// One `#[test]` for each case, on a fixture: `suite!(Devices::of(Mine))`. The expression is
        /// evaluated for each test. A skip prints its reason; `IBV_REQUIRE=NAME` makes a missing device
        /// fail.
        #[macro_export]
        macro_rules! suite {
            ($d fixture:expr) => {
                $($(#[test] fn $name() { $crate::check(&$d fixture, stringify!($name)); })*)*
            };
        }
    };
}

case_list! { $;
    lifecycle {
        queue_pair_starts_in_reset_and_reaches_rts [];
        endpoint_is_readable_in_reset_and_stable [];
        live_queue_pairs_have_different_numbers [];
        nothing_is_posted_before_connect [one_sided];
        receives_posted_before_connect_count [send];
        many_queue_pairs_work_side_by_side [moves];
        queue_pairs_come_and_go [moves];
        objects_outlive_their_domains_handle [moves] one_process;
        handles_move_between_threads [moves];
        handles_print_in_every_state [];
    }
    handshake {
        endpoint_bytes_round_trip [moves];
        malformed_endpoints_are_typed_errors [];
        second_connect_is_refused [moves];
        peer_of_another_transport_is_refused [moves];
        both_ends_agree_on_the_smaller_mtu [moves];
        both_ends_agree_on_outstanding_gets [];
        sequence_numbers_are_drawn_for_each_queue_pair [];
        sequence_numbers_wrap_in_a_transfer [moves];
        configuration_beyond_the_device_names_both_numbers [];
        configuration_beyond_the_specification_is_refused [];
        attributes_read_back_what_was_set [];
        gid_index_beyond_the_table_is_refused [];
        gid_is_chosen_by_its_bytes [];
        wrong_queue_key_reaches_nobody [moves];
        queue_of_another_domain_is_refused [] one_process;
    }
    write {
        put_writes_exactly_the_bytes_named [write];
        put_of_a_slice_lands_at_its_offset [write];
        put_through_the_trait_takes_the_remote_side_first [write];
        put_leaves_its_source_untouched [write];
        put_into_a_longer_destination_leaves_the_rest [write];
        put_gathers_its_ranges_in_order [write several_send_ranges];
        put_passes_over_ranges_of_no_bytes [write several_send_ranges];
        put_copies_inline_bytes_at_once [write inline];
        put_takes_inline_bytes_up_to_the_limit [write inline];
        put_works_at_every_alignment [write];
        puts_go_both_ways_at_once [write];
    }
    read {
        get_reads_exactly_the_bytes_named [read];
        get_into_a_longer_buffer_leaves_the_rest [read];
        get_through_the_trait_takes_the_local_side_first [read];
        get_scatters_to_its_ranges_in_order [read several_send_ranges];
        get_needs_no_more_than_the_right_to_read [read];
        bytes_are_there_when_their_gets_completion_is [read];
        more_gets_than_may_be_outstanding_wait_their_turn [read];
        put_then_get_is_a_round_trip [write read];
        get_works_at_every_alignment [read];
        gets_go_both_ways_at_once [read];
    }
    immediate {
        immediate_of_a_put_arrives_as_it_was_sent [write_with_imm];
        immediate_of_a_send_arrives_as_it_was_sent [send_with_imm];
        put_with_immediate_takes_one_receive_and_writes_elsewhere [write_with_imm];
        receive_of_an_immediate_tells_length_and_kind [write_with_imm];
        plain_put_takes_no_receive [write write_with_imm];
        split_put_delivers_its_immediate_once [write write_with_imm splits];
        bytes_are_there_when_their_own_immediate_is [write_with_imm];
        put_of_no_bytes_delivers_its_immediate [write_with_imm];
        send_without_an_immediate_reports_none [send send_with_imm];
        immediates_come_from_the_peer_too [write_with_imm];
    }
    send_recv {
        send_fills_a_receive_and_tells_its_length [send];
        send_into_a_longer_receive_leaves_the_rest [send];
        sends_meet_receives_in_posting_order [send messages_in_order];
        send_gathers_and_receive_scatters [send several_send_ranges several_recv_ranges];
        send_of_no_bytes_completes_at_both_ends [send];
        send_goes_up_to_its_limit_and_no_further [send];
        send_too_long_for_its_receive_fails_at_both_ends [send];
        late_receive_lets_a_waiting_send_through [send rnr_retry];
        missing_receive_ends_in_an_error [send rnr_retry];
        missing_receive_fails_a_put_with_immediate [write_with_imm rnr_retry];
        full_receive_queue_is_refused_and_recovers [send];
        receive_of_too_many_ranges_is_refused [send];
        sends_go_both_ways_at_once [send];
        inline_bytes_can_be_sent [send inline];
    }
    atomics {
        fetch_add_returns_the_old_value_and_adds [atomics];
        fetch_add_wraps [atomics];
        compare_swap_swaps_only_on_a_match [atomics];
        contended_adds_sum_up [atomics];
        one_of_many_compare_swaps_wins [atomics];
        crooked_atomic_is_refused [atomics];
        atomic_without_the_right_fails [atomics];
        more_atomics_than_may_be_outstanding_wait_their_turn [atomics];
    }
    batch {
        batch_posts_everything_with_one_ring [moves_apart];
        dropped_batch_posts_nothing [moves];
        leaked_batch_is_never_rung [moves];
        leaked_batch_is_not_rung_by_the_trait [one_sided];
        unrung_requests_are_invisible [moves];
        ringing_nothing_does_nothing [moves];
        batch_fills_the_whole_queue [moves_apart];
        refused_request_leaves_its_batch_intact [one_sided];
        puts_and_gets_mix_in_a_batch [write read];
        full_queue_is_refused_and_recovers [moves];
        transfer_larger_than_the_queue_is_refused_whole [one_sided splits];
        refusals_have_names_and_post_nothing [moves];
        ids_count_on_over_batches [moves];
    }
    completion {
        every_request_completes_once_with_its_own_id [moves];
        completions_name_their_queue_pair [moves];
        completions_tell_what_was_done [one_sided];
        completions_of_messages_tell_what_was_done [send];
        polling_in_portions_loses_nothing [moves];
        empty_queue_polls_nothing [moves];
        poll_completion_takes_one_at_a_time [one_sided];
        poll_completion_reports_failures [one_sided];
        poller_is_exclusive [moves];
        poller_hands_over_what_it_left [moves];
        unsignaled_success_is_silent_and_gives_its_credit_back [moves_apart completions_in_order];
        queue_full_of_unsignaled_requests_is_refused [moves completions_in_order];
        unsignaled_failure_reports [moves completions_in_order];
        sends_and_receives_report_to_their_own_queues [send];
        posting_and_polling_may_be_two_threads [moves];
    }
    sharing {
        shared_queue_gives_each_queue_pair_its_credits [moves];
        poll_completion_is_refused_on_a_shared_queue [];
        queue_without_room_refuses_a_queue_pair [];
        full_queues_do_not_overrun_their_completion_queue [send];
        stale_completions_harm_nobody [moves];
        queue_pairs_come_and_go_while_a_thread_polls [moves];
    }
    channel {
        armed_queue_tells_of_the_next_completion [moves cq_channel];
        nothing_falls_between_arming_and_waiting [moves cq_channel];
        unarmed_queue_tells_nothing [moves cq_channel];
        solicited_only_sleeps_through_the_rest [send cq_channel solicited];
        solicited_message_of_the_peer_wakes [send cq_channel solicited];
        failure_wakes_whoever_waits_for_solicited_ones [moves cq_channel solicited];
        queue_without_a_channel_is_not_armed [];
    }
    ordering {
        completions_come_in_posting_order [moves completions_in_order];
        completions_of_puts_and_gets_come_in_posting_order [write read completions_in_order];
        message_is_visible_before_the_one_that_announces_it [write write_with_imm messages_in_order];
        put_is_visible_before_the_send_behind_it [write send messages_in_order];
        last_put_to_a_place_stays [write messages_in_order];
        get_sees_the_put_before_it [write read messages_in_order];
        last_byte_becomes_visible_last [write bytes_in_order];
        fenced_put_sends_what_the_get_before_it_fetched [write read fence];
        fence_waits_for_all_gets_before_it [write read fence];
        put_is_there_when_announced_after_its_completion [write write_with_imm];
        source_is_free_once_its_own_put_completes [write];
        each_of_many_gets_is_there_once_it_completes [read];
        bytes_are_there_when_their_receive_is [send];
    }
    sizes {
        put_of_any_length_is_split_as_promised [write splits];
        get_of_any_length_is_split_as_promised [read splits];
        trait_returns_one_id_for_each_request [one_sided splits];
        ranges_are_gathered_across_chunks [write several_send_ranges splits];
        ranges_are_scattered_across_chunks [read several_send_ranges splits];
        put_of_no_bytes_is_one_request [write];
        get_of_no_bytes_is_one_request [read];
        lengths_around_packets_arrive_whole [one_sided];
        long_transfers_need_no_alignment [one_sided];
        lengths_beyond_32_bits_are_not_truncated [one_sided];
    }
    errors {
        put_through_a_wrong_key_touches_nothing [write];
        get_through_a_wrong_key_fetches_nothing [read];
        put_beyond_a_region_touches_nothing [write];
        get_beyond_a_region_fetches_nothing [read];
        range_past_2_to_the_64_touches_nothing [one_sided];
        put_without_the_right_touches_nothing [write];
        get_without_the_right_fetches_nothing [read];
        key_opens_its_own_region_only [one_sided];
        key_of_another_domain_opens_nothing [one_sided];
        key_is_dead_once_its_region_is_gone [one_sided];
        wrong_local_key_fails_locally [moves];
        get_into_memory_that_may_not_be_written_fails [read];
        sizes_that_do_not_fit_are_named [one_sided];
        peer_that_is_gone_ends_in_an_error [moves];
        peer_in_error_ends_in_an_error [moves];
        error_stays_with_its_queue_pair [moves];
    }
    root_cause {
        first_error_is_the_cause_and_flushes_its_consequences [moves];
        each_id_completes_once_after_an_error [moves];
        queue_pair_is_in_error_after_an_error [moves];
        posting_after_an_error_flushes [moves];
        receives_are_flushed_after_an_error [moves];
        unsignaled_requests_are_accounted_for_after_an_error [moves completions_in_order];
        split_transfer_has_one_cause [one_sided splits];
    }
    memory {
        region_is_covered_to_its_last_byte [moves];
        many_regions_have_keys_of_their_own [one_sided];
        deregistering_hands_the_memory_back [read];
        memory_can_be_registered_again [moves];
        regions_come_and_go [moves];
        dropped_region_fails_the_request_not_the_process [moves];
        dropped_destination_is_never_written_late [read];
        region_dropped_by_the_peer_fails_the_request [one_sided];
        forgotten_region_goes_on_working [moves];
        contradictory_access_is_refused [];
        views_stay_inside_their_region [];
        region_of_no_bytes_does_no_harm [one_sided];
    }
    teardown {
        close_drains_what_is_in_flight [moves];
        close_drains_an_unsignaled_tail [moves completions_in_order];
        close_gives_up_at_its_deadline [moves];
        two_phase_close_beside_ones_own_poller [moves];
        closing_flushes_receives_and_blames_nobody [];
        closing_while_the_peer_writes_is_quiet [one_sided];
        queue_pairs_drop_in_every_state [moves];
        handles_drop_in_every_order [moves];
        peer_may_go_first [one_sided];
        nothing_completes_after_a_drop [moves];
        completion_queue_outlives_its_queue_pairs [moves];
        forgotten_poller_harms_nobody [moves];
        a_reset_queue_pair_connects_again [moves];
    }
    capabilities {
        put_is_as_advertised [];
        get_is_as_advertised [];
        put_with_immediate_is_as_advertised [];
        send_is_as_advertised [];
        atomics_are_as_advertised [];
        fence_is_as_advertised [moves];
        solicited_events_are_as_advertised [send cq_channel];
        unsignaled_requests_are_as_advertised [moves];
        inline_data_is_as_advertised [carries_inline];
        inline_get_is_refused [read];
        number_of_ranges_is_as_advertised [moves];
        queue_depths_are_as_advertised [one_sided];
        completion_queue_depth_is_as_advertised [];
        completion_channels_are_as_advertised [];
        asynchronous_events_are_as_advertised [];
        loopback_is_as_advertised [moves loopback];
        capabilities_are_constant_and_consistent [];
    }
}
