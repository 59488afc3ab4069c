// Tests a mixture of experts with an optimizer whose moments change a parameter even if its
// gradient is zero.
#include <fsdp/optim.h>

#include "engine/support/twin.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

constexpr int kExperts = 3;
constexpr int64_t kExpertWidth = 6;

// A model that passes each token to one expert. `route` holds the expert of each token. If any rank
// has a token for an expert, every rank calls this expert, also a rank without such a token.
// `everywhere` holds these experts; all ranks must know it before the forward.
template <class Expert>
struct MixtureImpl : torch::nn::Module {
  MixtureImpl() {
    for (int i = 0; i < kExperts; ++i) {
      experts.push_back(
          this->register_module("expert" + std::to_string(i), Expert(kExpertWidth, kExpertWidth)));
    }
  }
  at::Tensor forward(const at::Tensor& x, const std::vector<int64_t>& route,
                     const std::vector<int64_t>& everywhere) {
    const at::Tensor expert_of = torch::tensor(route);
    at::Tensor out = at::zeros_like(x);
    for (int i = 0; i < kExperts; ++i) {
      if (everywhere[i] == 0) continue;
      const at::Tensor own = (expert_of == i).nonzero().flatten();
      out = out.index_add(0, own, experts[i](x.index_select(0, own)));
    }
    return out;
  }
  std::vector<Expert> experts;
};

using ApartImpl = MixtureImpl<Unit<torch::nn::Linear>>;
using TogetherImpl = MixtureImpl<torch::nn::Linear>;
TORCH_MODULE(Apart);
TORCH_MODULE(Together);

// Returns for each expert whether AdamW changed its weight in a step in which no rank had a token
// for it. In the step before, one rank had a token for it.
template <class Mixture>
std::vector<bool> moved_without_tokens() {
  std::vector<bool> moved(kExperts);
  run_torch_ranks(2, [&](const Mesh& mesh) {
    auto model = build_seeded(7, [] { return Unit<Mixture>(); });
    Engine engine(model, mesh, {});
    AdamW optimizer(engine, {.lr = 0.1});
    const auto step = [&](const std::vector<int64_t>& route) {
      std::vector<int64_t> tokens;
      for (int i = 0; i < kExperts; ++i) tokens.push_back(std::ranges::count(route, i));
      const std::vector<int64_t> everywhere = mesh.sum(tokens, "tokens of experts");
      model(values({2, kExpertWidth}, mesh.rank()), route, everywhere).square().sum().backward();
      optimizer.step();
      optimizer.zero_grad();
    };
    step(mesh.rank() == 0 ? std::vector<int64_t>{0, 1} : std::vector<int64_t>{2, 0});
    const auto before = full_parameters(engine);
    step(mesh.rank() == 0 ? std::vector<int64_t>{0, 0} : std::vector<int64_t>{1, 0});
    const auto after = full_parameters(engine);
    if (mesh.rank() != 0) return;
    for (int i = 0; i < kExperts; ++i) {
      const std::string name = "expert" + std::to_string(i) + ".weight";
      moved[i] = !bit_equal(before.at(name), after.at(name));
    }
  });
  return moved;
}

}  // namespace

TEST_CASE("an expert that is a unit stays where it is in a step without a token for it") {
  CHECK(moved_without_tokens<Apart>() == std::vector<bool>{true, true, false});
  // If all experts are in one unit, an expert without tokens has a gradient of zeros. Then moments
  // and decay change its weight.
  CHECK(moved_without_tokens<Together>() == std::vector<bool>{true, true, true});
}
