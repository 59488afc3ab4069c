#include "libtorch/touch_trap.h"

#include <ATen/record_function.h>

#include <vector>

#include "fsdp/error.h"
#include "libtorch/torch_compat.h"
#include "support/torch_doctest.h"

using namespace fsdp;
using namespace fsdp::touch_trap;

namespace {

struct Owner final : Touched {
  explicit Owner(std::string called) : name(std::move(called)) {}
  std::string name;
};

std::string line_of(std::string_view operation, const std::vector<const Owner*>& owners) {
  std::string line(operation);
  for (const Owner* owner : owners) line += " " + owner->name;
  return line;
}

// A listener that logs the trap's reports.
class Recorder final : public Listener {
 public:
  bool before(const Touch& touch) override {
    std::vector<const Owner*> owners;
    for (Touched* each : touch.units) owners.push_back(static_cast<Owner*>(each));
    lines.push_back(line_of(touch.name, owners));
    if (touch.written != nullptr) {
      lines.back() += ", writes " + static_cast<Owner*>(touch.written)->name;
    }
    return wants_results;
  }
  void after(const Touch& touch, std::span<const at::Tensor> results) override {
    lines.push_back(touch.name + " returned " + std::to_string(results.size()));
  }
  void failed(const Touch& touch, c10::Error& error) override {
    error.add_context("in " + touch.name);
  }

  bool wants_results = false;
  std::vector<std::string> lines;
};

// Arms the trap for a recorder. A process has one trap, which reports to the last listener that was
// armed.
Recorder& armed_recorder() {
  static Recorder recorder;
  arm(recorder);
  recorder.lines.clear();
  recorder.wants_results = false;
  return recorder;
}

// A unit by policy with a parameter of 4 x 4 ones.
struct Watched {
  explicit Watched(std::string name)
      : owner(std::move(name)), storage(sizeof memory, at::kCPU, "no seat", {.owner = &owner}) {
    const at::NoGradGuard no_grad;
    storage.adopt(tensor, DType::kFloat32, tensor.sizes().vec(), tensor.strides().vec());
    storage.bind(memory);
    std::fill(std::begin(memory), std::end(memory), 1.0F);
  }
  float memory[16] = {};
  Owner owner;
  torch_compat::BoundStorage storage;
  at::Tensor tensor = torch::empty({4, 4}, torch::requires_grad());
};

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("an operator is told before it runs, with whose parameters it is given") {
  Recorder& seen = armed_recorder();
  const Watched weight("weight"), bias("bias");
  const at::Tensor x = torch::ones({2, 4});
  seen.lines.clear();
  at::linear(x, weight.tensor, bias.tensor[0]);
  CHECK(seen.lines == Lines{"aten::select bias", "aten::linear weight bias"});
}

TEST_CASE("parameters in lists are seen, and each owner is told once") {
  Recorder& seen = armed_recorder();
  const Watched one("one"), two("two");
  seen.lines.clear();
  at::cat({two.tensor, one.tensor, two.tensor});
  CHECK(seen.lines == Lines{"aten::cat two one"});
}

TEST_CASE("views of a parameter are seen, what is computed from it is not") {
  Recorder& seen = armed_recorder();
  const Watched weight("weight");
  seen.lines.clear();
  const at::Tensor view = weight.tensor.t();
  const at::Tensor computed = view + 1;
  computed.sum().backward();
  // The backward of a sum expands the gradient. It does not read the parameter.
  CHECK(seen.lines == Lines{"aten::t weight", "aten::add weight"});
}

TEST_CASE("an operator that writes a parameter says so before it writes") {
  Recorder& seen = armed_recorder();
  const Watched weight("weight"), other("other");
  const at::NoGradGuard no_grad;
  seen.lines.clear();
  weight.tensor.add_(other.tensor);
  CHECK(seen.lines == Lines{"aten::add_ weight other, writes weight"});
}

TEST_CASE("results are told where they are wanted, of lists, too") {
  Recorder& seen = armed_recorder();
  const Watched weight("weight");
  seen.lines.clear();
  seen.wants_results = true;
  at::max(weight.tensor, 0);
  at::chunk(weight.tensor, 2);
  CHECK(seen.lines == Lines{"aten::max weight", "aten::max returned 2", "aten::chunk weight",
                            "aten::chunk returned 2"});
}

TEST_CASE("an error of the operator passes the listener") {
  armed_recorder();
  const Watched weight("weight");
  CHECK_THROWS_WITH(at::matmul(weight.tensor, torch::ones({3, 3})),
                    doctest::Contains("in aten::matmul"));
}

TEST_CASE("tensors of others, and parameters whose owner has forgotten them, pass unseen") {
  Recorder& seen = armed_recorder();
  Watched weight("weight");
  seen.lines.clear();
  torch::ones({4, 4}) + torch::ones({4, 4});
  {
    const Unseen unseen;
    weight.tensor + 1;
  }
  CHECK(owner_of(weight.tensor) == &weight.owner);
  weight.storage.forget_owner();
  weight.tensor + 1;
  CHECK(owner_of(weight.tensor) == nullptr);
  CHECK(seen.lines.empty());
}

TEST_CASE("what is computed of a cut shard carries the key, a number of it is refused") {
  armed_recorder();
  Owner unit("unit");
  float memory[4] = {1, 2, 3, 4};
  const at::Tensor run = torch_compat::wrap_watched(
      memory, 4, at::kCPU, {.owner = &unit, .holds = Holds::kMainShard, .is_cut = true}, nullptr);
  CHECK(run.sum().item<float>() == 10);  // only views of this tensor are watched
  const at::Tensor shard = torch_compat::view_of(run.storage(), 1, 3, at::kCPU);
  watch(shard);
  CHECK(owner_of(shard) == &unit);
  const auto has_key = [](const at::Tensor& tensor) { return tensor.key_set().has_all(key()); };
  CHECK(has_key(shard[0]));
  CHECK(has_key(shard + 1));
  CHECK(has_key(at::stack({shard, torch::ones(3)})));
  CHECK_FALSE(has_key(shard.clone()));
  CHECK_FALSE(has_key(at::zeros_like(shard)));
  CHECK_FALSE(has_key(torch::ones(3).add_(shard)));
  CHECK_FALSE(has_key(torch::ones(3).to(shard)));
  for (const auto& number :
       std::vector<std::function<void()>>{[&] { shard.sum(); }, [&] { (shard + 1).max(); },
                                          [&] { at::var_mean(shard); }, [&] { shard[0].item(); },
                                          [&] {
                                            (shard * 0).view({1, 3}).sum(1);
                                          }}) {
    CHECK_THROWS_WITH_AS(number(), doctest::Contains("computes a number from a shard"), StateError);
  }
  forget_owner(run);
  CHECK(owner_of(shard) == nullptr);
  CHECK_THROWS_AS(shard.sum(), StateError);  // it is still a part of the whole tensor
}

TEST_CASE("operators on shards and gradients are told, and who is written") {
  class Shards final : public Listener {
   public:
    bool before(const Touch& /*touch*/) override { return false; }
    void after(const Touch& /*touch*/, std::span<const at::Tensor> /*of*/) override {}
    void failed(const Touch& /*touch*/, c10::Error& /*error*/) override {}
    void shard(const ShardTouch& touch) override {
      lines.push_back(touch.name + " " + static_cast<Owner*>(touch.unit)->name +
                      (touch.holds == Holds::kGradients ? " gradient" : "") +
                      (touch.writes ? " written" : ""));
    }
    Lines lines;
  };
  static Shards seen;
  arm(seen);
  Owner unit("unit");
  float values[3] = {1, 2, 3}, gradients[3] = {1, 1, 1};
  const auto view = [&](float* memory, Holds holds) {
    const at::Tensor run = torch_compat::wrap_watched(
        memory, 3, at::kCPU, {.owner = &unit, .holds = holds, .is_cut = false}, nullptr);
    watch(run);
    return run;
  };
  const at::Tensor shard = view(values, Holds::kMainShard);
  const at::Tensor gradient = view(gradients, Holds::kGradients);
  shard.add_(gradient, -0.5);
  CHECK(shard.sum().item<float>() == 4.5);  // the shard is the whole tensor
  CHECK(seen.lines ==
        Lines{"aten::add_ unit written", "aten::add_ unit gradient", "aten::sum unit"});
}

// The second way of [Note: the trap] uses LibTorch's public observer instead of a dispatch key.
namespace {

thread_local Lines* observed = nullptr;
thread_local int observed_depth = 0;

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction& call) {
  std::vector<const Owner*> owners;
  const auto add = [&](const c10::IValue& value) {
    if (!value.isTensor()) return;
    auto* owner = static_cast<const Owner*>(owner_of(value.toTensor()));
    if (owner != nullptr && std::ranges::find(owners, owner) == owners.end()) {
      owners.push_back(owner);
    }
  };
  if (observed_depth++ > 0) return nullptr;  // inside another operator
  for (const c10::IValue& input : call.inputs()) {
    if (input.isTensorList()) {
      for (const c10::IValue& each : input.toListRef()) add(each);
    } else {
      add(input);
    }
  }
  if (!owners.empty()) observed->push_back(line_of(call.name(), owners));
  return nullptr;
}

void observe_end(const at::RecordFunction& /*call*/, at::ObserverContext* /*context*/) {
  --observed_depth;
}

}  // namespace

TEST_CASE("at::RecordFunction sees the operators that the trap sees, in the same order") {
  Recorder& seen = armed_recorder();
  const Watched weight("weight"), bias("bias");
  const at::Tensor x = torch::ones({2, 4});
  const auto forward = [&] {
    at::Tensor hidden = at::relu(at::linear(x, weight.tensor, bias.tensor.select(0, 1)));
    hidden = hidden + at::cat({weight.tensor, bias.tensor}).sum();
    return at::layer_norm(hidden, {4}, weight.tensor.select(0, 0), bias.tensor.select(0, 0));
  };
  seen.lines.clear();
  forward();
  const Lines by_trap = seen.lines;

  Lines by_observer;
  observed = &by_observer;
  const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(observe, observe_end)
                                                     .needsInputs(true)
                                                     .scopes({at::RecordScope::FUNCTION}));
  {
    const Unseen without_the_key;
    forward();
  }
  at::removeCallback(handle);

  CHECK(by_trap.size() == 6);
  CHECK(by_observer == by_trap);
}
