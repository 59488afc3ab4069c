// One of two ranks with mapped shards. The second is always late: it sleeps before it writes its
// shards, and during a forward that reads them.
//   fsdp-run -n 2 torch_rank meeting HOW
// HOW: gathered (nothing is mapped) · mapped · without-first, without-last (mapped, without one of
// the two barriers of a forward or backward). Prints its losses.
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fsdp/fsdp.h>
#include <torch/nn/modules/linear.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/environment.h"
#include "comm/mesh_state.h"
#include "comm/shm/shm_mesh.h"
#include "support/forwarding_communicator.h"
#include "torch_rank.h"

namespace fsdp::testing {
namespace {

void be_late() { std::this_thread::sleep_for(std::chrono::milliseconds(200)); }

class MeetingLeftOut final : public ForwardingCommunicator {
 public:
  MeetingLeftOut(std::unique_ptr<Communicator> inner, std::string_view purpose)
      : ForwardingCommunicator(std::move(inner)), purpose_(purpose) {}
  void issue(const Collective& collective, Stream& stream) override {
    if (collective.tag.label.find(purpose_) == std::string_view::npos) {
      ForwardingCommunicator::issue(collective, stream);
    }
  }

 private:
  const std::string purpose_;
};

// A model of two parameters of 1 MiB. On two ranks, half of this is enough to be mapped.
struct LateImpl : torch::nn::Module {
  explicit LateImpl(bool sleeps) : sleeps_in_forward(sleeps) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor h = torch::tanh(first(x));
    if (sleeps_in_forward && !at::GradMode::is_enabled()) be_late();
    return second(h).square().mean();
  }
  Unit<torch::nn::Linear> first{512, 512}, second{512, 512};
  bool sleeps_in_forward;
};
TORCH_MODULE(Late);

void say_loss(const Mesh& mesh, const at::Tensor& loss) {
  fmt::print("rank {}: {:a}\n", mesh.rank(), loss.item<float>());
}

void train(const Mesh& mesh, bool maps) {
  const bool late = mesh.rank() == 1;
  Unit<Late> model = [&] {
    torch::manual_seed(1);
    return Unit<Late>(late);
  }();
  Engine engine(model, mesh, {.tuning = {.map_shards = maps}});
  SGD optimizer(engine, {.lr = 1.0, .skip_nonfinite = false});
  const at::Tensor x = torch::linspace(-1, 1, 1024).reshape({2, 512});
  for (int step = 0; step < 3; ++step) {
    model(x).backward();
    {
      const at::NoGradGuard no_grad;
      say_loss(mesh, model(x));
    }
    if (late) be_late();
    optimizer.step();
    {
      const at::NoGradGuard no_grad;
      say_loss(mesh, model(x));
    }
    optimizer.zero_grad();
  }
}

}  // namespace

int meeting_rank(int, char** arguments) {
  at::set_num_threads(1);
  const std::string_view how = arguments[1];
  try {
    MeshParts parts = shm_mesh(read_launch_environment(), {});
    const std::string_view left_out = how == "without-first"  ? "from here"
                                      : how == "without-last" ? "until here"
                                                              : "";
    if (!left_out.empty()) {
      parts.world.gather =
          std::make_unique<MeetingLeftOut>(std::move(parts.world.gather), left_out);
    }
    train(mesh_of(std::move(parts)), how != "gathered");
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 70;
  }
  return 0;
}

}  // namespace fsdp::testing
