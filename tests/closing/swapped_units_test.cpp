// Tests units that differ only in their names. One rank calls them in another order.
#include <fsdp/engine.h>
#include <fsdp/unit.h>

#include <random>

#include "fsdp/error.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

struct PairImpl : torch::nn::Module {
  PairImpl(const std::string& first_name, const std::string& second_name)
      : first(4, 4), second(4, 4) {
    register_module(first_name, first);
    register_module(second_name, second);
  }
  at::Tensor forward(const at::Tensor& x) {
    return swapped ? first(torch::tanh(second(x))) : second(torch::tanh(first(x)));
  }
  Unit<torch::nn::Linear> first, second;
  bool swapped = false;
};
TORCH_MODULE(Pair);

}  // namespace

TEST_CASE(
    "two units of equal size in another order on one rank are refused, whatever their names") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t count) { return random() % count; };
    const std::string stem(9 + below(191), 'n');
    const int odd = static_cast<int>(below(3));
    Options options;
    options.prefetch_units = static_cast<int>(below(3));
    if (below(2) == 1) options.tuning.cpu_streams = CpuStreamKind::kThreaded;
    options.strategy = kStrategies[below(4)];
    const auto errors = errors_of_ranks(
        3,
        [&](Mesh mesh) {
          auto model = build_seeded(7, [&] { return Unit<Pair>(stem + "a", stem + "b"); });
          Engine engine(model, mesh, options);
          for (int step = 0; step < 2; ++step) {
            model->swapped = step == 1 && mesh.rank() == odd;
            model(values({2, 4}, 1)).sum().backward();
            engine.measure_gradients();
          }
          // Units that every rank holds whole issue no gathers. They are compared only in backward,
          // by their reductions.
          mesh.exchange("end", "");
        },
        torch_ranks_options());
    for (const std::string& error : errors)
      CHECK(error.find("ranks disagree") != std::string::npos);
  }
}
