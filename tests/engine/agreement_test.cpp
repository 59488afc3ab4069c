// Tests that ranks with different options or models are all refused, with an error that names both
// sides.
#include "fsdp/error.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct Side {
  Options options;
  std::function<Unit<Chain>()> make = [] { return Unit<Chain>(); };
};

// Runs three ranks. Rank 2 has `other`. All ranks must get the same text, which begins with `text`.
void check_refused(const Side& other, const std::string& text) {
  CAPTURE(text);
  const auto errors = errors_of_ranks(
      3,
      [&](const Mesh& mesh) {
        const Side side = mesh.rank() == 2 ? other : Side{};
        Unit<Chain> model = build_seeded(1, side.make);
        try {
          const Engine engine(model, mesh, side.options);
        } catch (const CommError& error) {
          CHECK(error.code() == ExitCode::kConfiguration);
          throw;
        }
      },
      torch_ranks_options());
  CHECK(errors[2].find(text) == 0);
  for (const std::string& error : errors) CHECK(error == errors[0]);
}

void check_option(const std::function<void(Options&)>& change, const std::string& ours,
                  const std::string& theirs) {
  Side other;
  change(other.options);
  check_refused(other, "ranks do not agree on the configuration: rank 0 has '" + ours +
                           "', rank 2 has '" + theirs + "' (configuration, line ");
}

}  // namespace

TEST_CASE("a different option is refused on all ranks, with both values") {
  check_option([](Options& o) { o.mixed_precision.param_dtype = torch::kBFloat16; },
               "param_dtype unset", "param_dtype bfloat16");
  check_option([](Options& o) { o.mixed_precision.reduce_dtype = torch::kBFloat16; },
               "reduce_dtype float32", "reduce_dtype bfloat16");
  check_option([](Options& o) { o.mixed_precision.output_dtype = torch::kFloat32; },
               "output_dtype unset", "output_dtype float32");
  check_option([](Options& o) { o.mixed_precision.cast_forward_inputs = false; },
               "cast_forward_inputs true", "cast_forward_inputs false");
  check_option([](Options& o) { o.reshard_after_forward = false; }, "reshard_after_forward true",
               "reshard_after_forward false");
  check_option([](Options& o) { o.prefetch_units = 2; }, "prefetch_units 1", "prefetch_units 2");
  check_option([](Options& o) { o.strategy = Strategy::kReplicate; }, "strategy full-shard",
               "strategy replicate");
  check_option([](Options& o) { o.gradient_reduction = GradientReduction::kSum; },
               "gradient_reduction 0", "gradient_reduction 1");
  check_option([](Options& o) { o.gradient_divide_factor = 2.0F; }, "gradient_divide_factor 0",
               "gradient_divide_factor 2");
  check_option([](Options& o) { o.seed = 3; }, "seed 0", "seed 3");
}

TEST_CASE("a different model is refused on all ranks, with the first parameter that differs") {
  const std::string begin = "ranks do not agree on the model: rank 0 has ";
  const std::string head = "'parameter 'embedding.weight' [17, 8] strides [8, 1] Float', ";
  check_refused({.options = {}, .make = [] { return Unit<Chain>(16); }},
                begin +
                    "'parameter 'norm.weight' [8] strides [1] Float', rank 2 has 'parameter "
                    "'norm.weight' [16] strides [1] Float'");
  check_refused({.options = {}, .make = [] { return Unit<Chain>(8, 4); }},
                begin + "'unit 'head' param_dtype unset ");
  check_refused({.options = {},
                 .make =
                     [] {
                       Unit<Chain> model;
                       model->to(torch::kBFloat16);
                       return model;
                     }},
                begin);
  check_refused(
      {.options = {},
       .make =
           [] {
             Unit<Chain> model;
             model->embedding->weight.set_requires_grad(false);
             return model;
           }},
      begin + head +
          "rank 2 has 'parameter 'embedding.weight' [17, 8] strides [8, 1] Float frozen'");
  check_refused(
      {.options = {.unit_options =
                       [](std::string_view fqn) {
                         UnitOptions own;
                         if (fqn == "head") own.unshard_in_backward = false;
                         return own;
                       }}},
      begin +
          "'unit 'head' param_dtype unset reduce_dtype float32 output_dtype unset "
          "cast_forward_inputs true reshard_after_forward true prefetch 1 unshard_in_backward true "
          "strategy full-shard recompute false', rank 2 has 'unit 'head' ");
  check_refused(
      {.options = {.unit_options =
                       [](std::string_view fqn) {
                         UnitOptions own;
                         if (fqn == "head") own.strategy = Strategy::kZero2;
                         return own;
                       }}},
      begin +
          "'unit 'head' param_dtype unset reduce_dtype float32 output_dtype unset "
          "cast_forward_inputs true reshard_after_forward true prefetch 1 unshard_in_backward true "
          "strategy full-shard recompute false', rank 2 has 'unit 'head' ");
  check_refused({.options = {.ignore = [](std::string_view fqn) { return fqn == "norm.bias"; }}},
                begin);
}
