import os
import signal
from importlib.metadata import version

# Most of the suite's time is compilation of small programs: let the compiler optimise less. Same programs, same arithmetic.
flags = "--xla_backend_optimization_level=0 --xla_force_host_platform_device_count=8"
if version("jaxlib").startswith("0.10."):  # another version may not know this flag, and refuse to start
    flags += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", flags)
if "device_count" not in os.environ["XLA_FLAGS"]:  # flags of the user's own are kept
    os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=8"
os.environ.setdefault("NPROC", "16")  # threads for eight devices
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # for tests side by side, and what they start

if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # as in the background of a script, where tests of Ctrl-C would wait forever
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

import jax  # noqa: E402
import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

settings.register_profile("fixed", derandomize=True, deadline=None, max_examples=25, database=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


LONG = (  # tests and cases of tests that take many seconds, and whose like run by default
    "test_a_callback_that_stops_where_points_are_drawn",
    "test_a_result_like_any_other",
    "test_one_program_per_shape",
    "test_a_read_only_folder_is_refused",
    "test_too_large_for_gauss_newton",
    "test_a_result_so_far_keeps_what_the_run_keeps",
    "test_an_interrupt_while_the_error_is_estimated",
    "test_estimates_that_say_too_much_or_too_little",
    "test_models_alike_and_the_papers_budgets",
    "test_a_second_attempt_can_be_cut_and_continued",
    "test_answers_solve_their_problems[poisson_2d]",
    "test_answers_solve_their_problems[burgers]",
    "test_sweeps[sapm-pde-tanh-2x4x3x1]",
    "test_sweeps[pm-pde-tanh-2x4x3x1]",
    "test_sweeps[pm-value-sin-3x3x3x3x3x3x3x3x3x3x3x3x3x3x3x2]",
    "test_allen_cahn_by_finite_differences",
    "test_resume_with_dropped_seeds[auto]",
    "test_stationary_and_never_up[pm-value-tanh-2x5x3x2]",
    "test_decaying_rate",
    "test_standard_errors_of_what_was_found",
    "test_theorem_5_at_random_points[nonlinear-tanh]",
    "test_two_functions_and_what_was_seen",
    "test_no_better_than_the_mean_is_said",
    "test_conditions_are_weighed_alike",
    "test_the_estimate_sees_fine_detail_along_a_line",
    "test_rows_without_training",
    "test_many_turns_are_not_followed_to_their_end",
    "test_one_interval_of_time_after_the_other",
    "test_tutorials_run_and_draw[2_transport]",
    "test_a_finished_run_keeps_its_network_when_it_is_continued_without_its_problem",
    "test_stages_end_in_time",
    "test_a_second_attempt_with_points_of_ones_own_to_test_at",
    "test_nothing_is_kept_where_nothing_could_be_compared",
    "test_nothing_is_found_where_u_is_nothing",
    "test_an_even_function_is_learnt",
    "test_no_more_points_than_a_step_can_take",
    "test_chunks_equal_the_whole[sapm-l2-scaled]",
    "test_every_peer_lowers_the_loss[scipy-bfgs]",
    "test_resumed_equals_uninterrupted[sweeps]",
    "test_chunks_equal_the_whole[pm]",
    "test_chunks_equal_the_whole[sapm-joint]",
    "test_stationary_and_never_up[sapm-pde-relu-2x3x3x3x1]",
    "test_stationary_and_never_up[pm-pde-relu-2x3x3x3x1]",
    "test_seeds_together_equal_seeds_apart[pinn]",
    "test_sweeps[sapm-pde-sin-2x4x4x4x4x1]",
    "test_peers_minimise_the_true_loss[transport_1d-sin-3x4]",
    "test_descent[transport-sapm]",
    "test_the_jacobian_and_what_stands_for_it[boundary first]",
    "test_interrupt_ends_a_series",
    "test_deepxde",
    "test_conformance",
    "test_the_jacobian_and_what_stands_for_it[nonlinear]",
    "test_units_do_not_matter",
    "test_equation_is_read_off_exactly",
    "test_a_lifted_phase_that_made_it_worse_is_undone",
    "test_any_linear_residual",
    "test_own_problem_and_several_models",
    "test_answers_solve_their_problems[allen_cahn]",
    "test_looped_and_separate_layers_agree[True]",
    "test_padding_changes_nothing",
    "test_equinox",
    "test_descent[one output-pm]",
    "test_peers_minimise_the_true_loss[function_1d-tanh-3x4]",
    "test_every_peer_lowers_the_loss[adam-lbfgs]",
    "test_the_step_with_parameters_is_the_dense_one[primal]",
    "test_hard_conditions_hold_and_the_error_is_estimated",
    "test_reproduction",
    "test_ill_posed_rotation_is_said",
    "test_the_jacobian_and_what_stands_for_it[transport]",
    "test_the_jacobian_and_what_stands_for_it[two outputs]",
    "test_lifted_step_is_the_minimiser_over_all_variables[second order-sapm]",
    "test_lifted_step_is_the_minimiser_over_all_variables[boundary first-sapm]",
    "test_lifted_step_is_the_minimiser_over_all_variables[along the flow-sapm]",
    "test_the_weight_of_the_boundary_is_the_strength_of_the_operator",
    "test_a_failing_seed_harms_no_other",
    "test_every_peer_lowers_the_loss[optimistix-lm]",
    "test_peers_minimise_the_true_loss[burgers-tanh-3x4]",
    "test_far_below_descent",
    "test_answers_solve_their_problems[advection_diffusion]",
    "test_answers_solve_their_problems[poisson_5d]",
    "test_stationary_and_never_up[pm-pde-tanh-2x4x3x1]",
    "test_resumed_equals_uninterrupted[polish]",
    "test_sweeps[pm-pde-sin-2x4x4x4x4x1]",
    "test_sweeps[pm-pde-sin-2x4x1]",
    "test_fits_of_many_sizes_share_programs",
    "test_solved_kept_and_drawn[heat-15-3-0.7853981633974483]",
    "test_l2_ends_at_a_stationary_point",
    "test_solved_as_it_is_typed[rod]",
    "test_textbook_problems_by_separated_layers[poisson_2d-sapm-alternating]",
    "test_peers_minimise_the_true_loss[poisson_2d-sin-3x4]",
    "test_random_features_of_second_order",
    "test_the_jacobian_and_what_stands_for_it[second order]",
    "test_the_jacobian_and_what_stands_for_it[one output]",
    "test_nonlinear_files_ask_for_the_problem",
    "test_resumed_equals_uninterrupted[lifted]",
    "test_descent[transport-ls]",
    "test_solved_as_it_is_typed[string]",
    "test_solved_as_it_is_typed[bent]",
    "test_blocks_never_raise_the_loss_and_closed_forms_are_stationary[nonlinear-sapm-widths0]",
    "test_nonlinear_equations_in_other_units",
    "test_characteristics_with_a_reaction",
    "test_polish_lowers_the_true_loss",
    "test_sweeps[sapm-pde-relu-2x3x3x3x1]",
    "test_sweeps[sapm-pde-sigmoid-3x4x4x4x4x1]",
    "test_deep_and_shallow_networks",
    "test_frames_scaling_and_names",
    "test_looped_and_separate_layers_agree[False]",
    "test_characteristics_in_physical_units",
    "test_bound_along_runs[sapm-pde-sin-2x4x4x4x4x1]",
    "test_the_step_with_parameters_is_the_dense_one[dense]",
    "test_lifted_step_is_the_minimiser_over_all_variables[transport-sapm]",
    "test_consistency",
    "test_starts_and_warm_start",
    "test_every_peer_lowers_the_loss[optimistix-bfgs]",
    "test_one_device_equals_several[dual]",
    "test_a_point_without_tangents_stays_free",
    "test_points_are_drawn_where_the_residual_is_large",
    "test_bound_along_runs[sapm-value-tanh-2x5x3x2]",
    "test_stationary_and_never_up[sapm-pde-tanh-2x4x3x1]",
    "test_textbook_problems_by_separated_layers[heat_1d-sapm-alternating]",
    "test_a_periodic_system_and_its_fields",
    "test_the_step_with_parameters_is_the_dense_one[dual]",
    "test_an_end_before_the_end[interrupted]",
    "test_lifted_step_is_the_minimiser_over_all_variables[transport-pm]",
    "test_the_jacobian_and_what_stands_for_it[along the flow]",
    "test_every_peer_lowers_the_loss[optimistix-lm-cholesky]",
    "test_chunks_equal_the_whole[pm-joint]",
    "test_second_order_files_need_no_code",
    "test_directional_terms_have_the_same_residual_and_a_bound_of_their_own",
    "test_lifted_step_is_the_minimiser_over_all_variables[two outputs-sapm]",
    "test_descent_on_the_true_loss[lbfgs]",
    "test_resumed_equals_uninterrupted[gauss-newton]",
    "test_run_resume_report_predict_export",
    "test_a_parameter_is_found_and_kept",
    "test_every_peer_lowers_the_loss[optimistix-lbfgs]",
    "test_an_end_before_the_end[killed]",
    "test_levenberg_marquardt_takes_our_step",
    "test_killed_and_resumed",
    "test_pictures_where_the_answer_ends",
    "test_blocks_never_raise_the_loss",
    "test_many_seeds_look_right",
    "test_data_of_any_size",
    "test_descent[one output-sapm]",
    "test_lifted_step_is_the_minimiser_over_all_variables[one output-sapm]",
    "test_terms_of_a_small_region_are_seen",
    "test_the_first_examples_run[index.md]",
    "test_several_processes_have_the_history_of_one_and_one_goes_on[2]",
    "test_interrupt_keeps_the_run",
    "test_a_run_goes_on_with_other_devices",
    "test_weights_per_sample_and_one_input",
    "test_stationary_and_never_up[pm-pde-sin-2x4x1]",
    "test_sweeps[sapm-pde-tanh-2x4x3x1-joint]",
    "test_collapsed_network_is_harmless[sapm-pde-tanh-2x4x3x1]",
    "test_units_of_a_nonlinear_problem",
    "test_reference_equals_exact[rotation]",
    "test_equinox_activations_and_scan",
    "test_losses_weights_and_ridges[pm-pde-sin-2x4x4x4x4x1]",
    "test_descent_on_the_true_loss[adam]",
    "test_every_peer_lowers_the_loss[scipy-least-squares]",
    "test_a_cell_is_made_once",
    "test_lifted_step_is_the_minimiser_over_all_variables[two outputs-pm]",
    "test_descent_lowers_every_loss[lbfgs-ls]",
    "test_sweeps[sapm-value-sin-3x3x3x3x3x3x3x3x3x3x3x3x3x3x3x2]",
    "test_models_and_methods[pm-lbfgs-lbfgs]",
    "test_own_activation",
    "test_stationary_and_never_up[sapm-value-tanh-2x5x3x2]",
    "test_ctrl_c_at_the_last_look",
    "test_more_points_and_a_file_of_them",
    "test_starts[uniform]",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in LONG:
            item.add_marker(pytest.mark.slow)
