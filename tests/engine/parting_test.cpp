// Tests ranks whose programs diverge during training. All must get an error at once that names both
// sides.
#include <stdexcept>

#include "engine/support/twin.h"
#include "support/mismatch_text.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int64_t kUnitWidth = 8;

// Checks the errors of the ranks if rank 1 runs another program in the second of four steps.
void check_parting(const GraphImpl::Body& body) {
  for (const bool reshard : {true, false}) {
    for (const auto streams : every_stream_kind()) {
      CAPTURE(reshard);
      RunRanksOptions options = torch_ranks_options();
      options.mesh.timeout = std::chrono::minutes(10);
      const auto errors = errors_of_ranks(
          2,
          [&](const Mesh& mesh) {
            Unit<Graph> model = build_seeded(1, [&] { return Unit<Graph>(3, kUnitWidth, body); });
            Engine engine(model, mesh,
                          {.reshard_after_forward = reshard, .tuning = {.cpu_streams = streams}});
            model->rank = mesh.rank();
            for (model->step = 0; model->step < 4; ++model->step) {
              try {
                model(values({3, kUnitWidth}, mesh.rank())).square().mean().backward();
              } catch (const std::domain_error&) {  // the program continues without this batch
              }
              engine.zero_grad();
            }
          },
          options);
      CHECK(errors[0].find(kDisagree + "rank 0 issued ") == 0);
      CHECK(errors[0].find(", rank 1 issued ") != std::string::npos);
      CHECK(errors[0] == errors[1]);
    }
  }
}

}  // namespace

TEST_CASE("a unit that one rank skips is an error at once, on all ranks") {
  check_parting([](GraphImpl& graph, const at::Tensor& x) {
    at::Tensor h = x;
    const bool skips = graph.rank == 1 && graph.step == 1;
    for (size_t i = 0; i < graph.units.size() - (skips ? 1 : 0); ++i) h = graph.units[i](h).tanh();
    return graph.norm(h);
  });
}

TEST_CASE("a backward that throws on one rank, which then goes on training, is an error at once") {
  check_parting([](GraphImpl& graph, const at::Tensor& x) {
    at::Tensor h = graph.units[0](x).tanh();
    if (graph.rank == 1 && graph.step == 1) {
      h.register_hook([](const at::Tensor&) -> void { throw std::domain_error("not finite"); });
    }
    for (size_t i = 1; i < graph.units.size(); ++i) h = graph.units[i](h).tanh();
    return graph.norm(h);
  });
}
