// Tests AdamW8bit, also against steps of bitsandbytes' AdamW8bit that record_adamw_8bit.py has
// recorded.
#include <fsdp/loss_scaler.h>
#include <fsdp/lr_scheduler.h>
#include <fsdp/optim.h>

#include <fstream>
#include <map>
#include <sstream>

#include "kernels/element/count_steps.h"
#include "kernels/update_blocks.h"
#include "plan/placement.h"
#include "support/models.h"
#include "support/source_tree.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

// The content of records/adamw_8bit.txt.
struct Record {
  struct Moment {
    std::vector<uint8_t> codes;
    std::vector<float> absmax;
  };
  std::map<int, std::array<Moment, 2>> states;  // by steps
  std::vector<float> values;                    // every 16th element after 200 steps
  std::map<int, double> losses;                 // by steps
};

Record read_record() {
  std::ifstream file(source_file("tests/optim/records/adamw_8bit.txt"));
  Record record;
  for (std::string line, kind; std::getline(file, line);) {
    std::istringstream words(line);
    words >> kind;
    int step = 0;
    if (kind == "values") {
      for (float value = 0; words >> value;) record.values.push_back(value);
    } else if (kind == "loss") {
      words >> step;
      words >> record.losses[step];
    } else {
      size_t moment = 0;
      std::string codes;
      words >> step >> moment >> codes;
      Record::Moment& to = record.states[step].at(moment - 1);
      for (size_t i = 0; i < codes.size(); i += 2) {
        to.codes.push_back(static_cast<uint8_t>(std::stoi(codes.substr(i, 2), nullptr, 16)));
      }
      for (float value = 0; words >> value;) to.absmax.push_back(value);
    }
  }
  return record;
}

constexpr int64_t kNumel = 4103;
constexpr double kRate = 1e-3, kDecay = 0.1;

// The gradient of record_adamw_8bit.py.
at::Tensor recorded_gradient(int64_t step) {
  const at::Tensor at = at::arange(kNumel);
  const at::Tensor whole = ((at * 13 + step * (at % 5 + 3)) % 17 - 8).to(at::kFloat);
  return whole * at::pow(at::full({}, 0.5F), at % 11);
}

// A parameter with the recorded gradients.
struct RecordedImpl : torch::nn::Module {
  RecordedImpl() {
    const at::Tensor at = at::arange(kNumel);
    weight = register_parameter("weight", ((at * 37) % 64 - 32).to(at::kFloat) / 64);
  }
  at::Tensor forward(int64_t step) { return (weight * recorded_gradient(step)).sum(); }
  at::Tensor weight;
};
TORCH_MODULE(Recorded);

// The network whose losses are recorded.
struct RecordedLossesImpl : torch::nn::Module {
  RecordedLossesImpl() {
    hidden = register_parameter("hidden", range(128 * 64, 37, 64, 32).view({128, 64}) / 256);
    output = register_parameter("output", range(128, 11, 32, 16) / 64);
  }
  static at::Tensor range(int64_t numel, int64_t factor, int64_t modulus, int64_t shift) {
    return ((at::arange(numel) * factor) % modulus - shift).to(at::kFloat);
  }
  at::Tensor forward() {
    const at::Tensor sample = at::arange(64), rows = (sample % 16).unsqueeze(1);
    const at::Tensor columns = at::arange(64).unsqueeze(0);
    const at::Tensor inputs =
        ((rows * 37 + columns * 11 + rows * columns) % 23 - 11).to(at::kFloat) / 11;
    const at::Tensor targets = ((sample % 16 * 29) % 17 - 8).to(at::kFloat) / 8 +
                               ((sample * 5) % 7 - 3).to(at::kFloat) / 16;
    return (at::tanh(inputs.matmul(hidden.t())).matmul(output) - targets).square().mean();
  }
  at::Tensor hidden, output;
};
TORCH_MODULE(RecordedLosses);

Options in_blocks(Options options = {}) {
  options.shard_granule = AdamW8bit::kBlockNumel;
  return options;
}

// Large and small parameters in two units, and gradients that are small integers, so that their
// mean over any number of ranks is exact.
struct MixImpl : torch::nn::Module {
  explicit MixImpl(int64_t seed) : seed_(seed) {
    add("large", {64, 70});
    add("small", {70});
    add("vector", {kNumel});
    add("other", {31, 150});
  }
  void add(const std::string& name, std::vector<int64_t> shape) {
    const at::Tensor at = at::arange(c10::multiply_integers(shape));
    register_parameter(name, (((at * 37 + seed_) % 64 - 32).to(at::kFloat) / 64).view(shape));
  }
  at::Tensor forward(int64_t step) {
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& each : parameters(/*recurse=*/false)) {
      const at::Tensor at = at::arange(each.numel()).to(each.device());
      const at::Tensor gradient =
          ((at * 13 + seed_ * 7 + step * (at % 5 + 3)) % 17 - 8).view_as(each);
      loss = loss + (each * gradient.to(each.scalar_type())).sum().to(at::kFloat);
    }
    return loss;
  }
  int64_t seed_;
};
TORCH_MODULE(Mix);

struct MixesImpl : torch::nn::Module {
  MixesImpl() : first(1), second(2) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(int64_t step) { return first(step) + second(step); }
  Unit<Mix> first, second;
};
TORCH_MODULE(Mixes);

template <class Options>
Options options_of_mix() {
  Options options;
  options.lr = 0.01;
  options.weight_decay = 0.1;
  options.groups = {{.match = is_bias_or_norm, .lr_scale = 0.5, .name = "vectors"}};
  return options;
}

// Trains `steps` steps with clipping, a schedule, a skipped step and a group's own rate.
template <class Optimizer, class OptimizerOptions>
std::map<std::string, at::Tensor> train_mix(const MeshShape& shape, const Options& options,
                                            int steps) {
  std::map<std::string, at::Tensor> result;
  run_torch_ranks(shape, [&](Mesh mesh) {
    Unit<Mixes> model;
    Engine engine(model, mesh, options);
    Optimizer optimizer(engine, options_of_mix<OptimizerOptions>());
    LossScaler scaler(engine, {.init_scale = 4});
    LambdaLR schedule(optimizer, [](int64_t epoch) { return epoch < 2 ? 1.0 : 0.5; });
    for (int step = 0; step < steps; ++step) {
      if (step == 1) {
        scaler.scale(engine.forward([&] { return model(step); }) * INFINITY).backward();
        const StepReport report = optimizer.step();
        CHECK(report.skipped());
        scaler.update(report);
        optimizer.zero_grad();
      }
      if (step == 3) optimizer.param_groups()[1].set_lr(0.02);
      scaler.scale(engine.forward([&] { return model(step); })).backward();
      optimizer.clip_grad_norm(1e6);
      const StepReport report = optimizer.step();
      CHECK_FALSE(report.skipped());
      scaler.update(report);
      optimizer.zero_grad();
      schedule.step();
    }
    CHECK(optimizer.steps() == steps);
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) result = std::move(parameters);
  });
  return result;
}

std::map<std::string, at::Tensor> train_8bit(const MeshShape& shape, const Options& options = {},
                                             int steps = 6) {
  return train_mix<AdamW8bit, AdamW8bitOptions>(shape, in_blocks(options), steps);
}

void check_same_parameters(const std::map<std::string, at::Tensor>& one,
                           const std::map<std::string, at::Tensor>& other) {
  REQUIRE(one.size() == other.size());
  for (const auto& [fqn, value] : one) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, other.at(fqn)));
  }
}

}  // namespace

TEST_CASE("from bitsandbytes' state a step stores bitsandbytes' codes") {
  if (is_simulated_gpu()) return;  // the kernels are tested in tests/kernels_simulated
  Record record = read_record();
  REQUIRE(record.states.size() == 2);
  std::array<Record::Moment, 2>& state = record.states.at(50);
  const std::array<Record::Moment, 2>& expected = record.states.at(51);
  at::Tensor weight = at::zeros({kNumel}), gradient = recorded_gradient(50);
  const kernels::StepCount step = kernels::count_at(51, {.beta1 = 0.9, .beta2 = 0.999});
  const kernels::BlockSegment segment{
      .elements = {.param = weight.mutable_data_ptr<float>(),
                   .grad = gradient.const_data_ptr<float>(),
                   .numel = kNumel,
                   .lr = kRate,
                   .weight_decay = kDecay,
                   .step = &step},
      .exp_avg = {state[0].codes.data(), state[0].absmax.data()},
      .exp_avg_sq = {state[1].codes.data(), state[1].absmax.data()}};
  const auto stream = cpu_device().make_stream({.name = "blocks", .runs_beside = false});
  kernels::update_blocks(*stream, {&segment, 1}, kernels::AdamW{});
  for (const size_t moment : {0, 1}) {
    CAPTURE(moment);
    REQUIRE(expected[moment].codes.size() == kNumel);
    REQUIRE(expected[moment].absmax.size() == 17);
    int64_t apart = 0;
    for (size_t i = 0; i < kNumel; ++i) {
      const int difference = state[moment].codes[i] - expected[moment].codes[i];
      CHECK(std::abs(difference) <= 1);
      if (difference != 0) ++apart;
    }
    CHECK(apart <= kNumel / 1000);
    for (size_t i = 0; i < 17; ++i) {
      CHECK(state[moment].absmax[i] == doctest::Approx(expected[moment].absmax[i]).epsilon(1e-6));
    }
  }
}

// The bound is 1 % of the way that a parameter can go in 200 steps.
TEST_CASE("200 steps with equal gradients lead where bitsandbytes' lead") {
  const Record record = read_record();
  for (const int world : {1, 3}) {
    if (is_simulated_gpu()) break;  // 200 steps would take minutes
    CAPTURE(world);
    run_torch_ranks(world, [&](Mesh mesh) {
      Unit<Recorded> model;
      Engine engine(model, mesh, in_blocks());
      AdamW8bit optimizer(engine, {.lr = kRate, .weight_decay = kDecay});
      for (int step = 0; step < 200; ++step) {
        model(step).backward();
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor weight = full_parameters(engine).at("weight").cpu();
      if (mesh.rank() != 0) return;
      REQUIRE(record.values.size() == kNumel / 16 + 1);
      float largest = 0;
      for (size_t i = 0; i < record.values.size(); ++i) {
        const float value = weight.const_data_ptr<float>()[16 * i];
        largest = std::max(largest, std::abs(value - record.values[i]));
      }
      CHECK(largest < 0.01 * 200 * kRate);
    });
  }
}

TEST_CASE("the loss after 200 steps is bitsandbytes'") {
  const Record record = read_record();
  REQUIRE(record.losses.size() == 2);
  run_torch_ranks(1, [&](Mesh mesh) {
    Unit<RecordedLosses> model;
    Engine engine(model, mesh, in_blocks());
    AdamW8bit optimizer(engine, {.lr = kRate, .weight_decay = kDecay});
    const int steps = is_simulated_gpu() ? 1 : 200;
    for (int step = 0; step < steps; ++step) {
      const at::Tensor loss = model();
      loss.backward();
      optimizer.step();
      optimizer.zero_grad();
      const auto found = record.losses.find(step);
      if (found == record.losses.end()) continue;
      CHECK(loss.item<double>() == doctest::Approx(found->second).epsilon(step == 0 ? 1e-5 : 0.01));
    }
  });
}

// The moments are zero before the first step, and a parameter is updated before its moments are
// quantized.
TEST_CASE("the first step is AdamW's, and so are all steps of small parameters, bit for bit") {
  for (const int steps : {1, 6}) {
    CAPTURE(steps);
    const auto ours = train_8bit({.shard = 2}, {}, steps);
    const auto adamw = train_mix<AdamW, AdamWOptions>({.shard = 2}, {}, steps);
    for (const auto& [fqn, value] : ours) {
      CAPTURE(fqn);
      const bool is_small = fqn.ends_with("small");
      CHECK(bit_equal(value, adamw.at(fqn)) == (steps == 1 || is_small));
      // Values of moments differ by at most a few percent, so an update differs by little.
      CHECK(at::allclose(value, adamw.at(fqn), 0, 0.01));
    }
  }
}

TEST_CASE("the bits are those of one rank for every number of ranks and in every strategy") {
  const auto one = train_8bit({.shard = 1});
  for (const int world : {2, 3, 5}) {
    if (is_simulated_gpu() && world != 3) continue;
    CAPTURE(world);
    check_same_parameters(train_8bit({.shard = world}), one);
  }
  for (const Strategy strategy : kAllStrategies) {
    if (is_simulated_gpu() && strategy != Strategy::kHybridShard) continue;
    for (const bool offload : {false, true}) {
      CAPTURE(name_of(strategy));
      CAPTURE(offload);
      check_same_parameters(
          train_8bit({.replicate = 2, .shard = 2}, {.cpu_offload = offload, .strategy = strategy}),
          one);
    }
  }
}

TEST_CASE("resident bfloat16 copies are written with the parameters") {
  run_torch_ranks(2, [&](Mesh mesh) {
    Unit<Mixes> model;
    Engine engine(model, mesh,
                  in_blocks({.mixed_precision = {.param_dtype = torch::kBFloat16},
                             .strategy = Strategy::kReplicate}));
    AdamW8bit optimizer(engine, options_of_mix<AdamW8bitOptions>());
    for (int step = 0; step < 2; ++step) {
      model(step).backward();
      optimizer.step();
      optimizer.zero_grad();
    }
    const Gathered whole(engine);
    for (const ShardedParameter& each : engine.sharded_parameters()) {
      CAPTURE(each.fqn);
      const at::Tensor bound = model->named_parameters()[each.fqn].detach().flatten();
      CHECK(bit_equal(bound, each.local.detach().to(torch::kBFloat16)));
    }
  });
}

TEST_CASE("the engine counts one byte per element and moment, and four per block") {
  run_torch_ranks(1, [&](Mesh mesh) {
    Unit<RecordedLosses> model;
    Engine engine(model, mesh, in_blocks());
    const auto state = [&] {
      return engine.stats().memory.in_use[MemoryCategory::kOptimizerState];
    };
    {
      const AdamW8bit optimizer(engine, {});
      CHECK(state() == 2 * (8192 + 8192 / 256 * 4) + 2 * 4 * 128);
      CHECK(engine.memory_plan().rest == engine.stats().memory.in_use);
    }
    CHECK(state() == 0);
    const AdamW8bit small(
        engine, {.parameters = [](const ShardedParameter& each) { return each.fqn == "output"; }});
    CHECK(state() == 2 * 4 * 128);
  });
}

TEST_CASE("an engine that may divide blocks, and options that AdamW8bit cannot have, are refused") {
  run_torch_ranks(1, [&](Mesh mesh) {
    for (const int64_t granule : {1, 128}) {
      Unit<RecordedLosses> model;
      Engine engine(model, mesh, {.shard_granule = granule});
      CHECK_THROWS_WITH_AS(
          AdamW8bit(engine, {}),
          doctest::Contains("but AdamW8bit needs a multiple of 256 (fsdp::AdamW8bit)"),
          InvalidArgument);
    }
    Unit<RecordedLosses> model;
    CHECK_THROWS_WITH_AS(Engine(model, mesh, {.shard_granule = 100}),
                         doctest::Contains("shard_granule is 100"), InvalidArgument);
    CHECK_THROWS_WITH_AS(BuildScope(mesh, {.shard_granule = 100}),
                         doctest::Contains("shard_granule is 100"), InvalidArgument);
    Engine engine(model, mesh, in_blocks());
    CHECK_THROWS_WITH_AS(AdamW8bit(engine, {.lr = -1}), doctest::Contains("AdamW8bit: lr is -1"),
                         InvalidArgument);
    AdamW8bit optimizer(engine, {});
    CHECK_THROWS_AS(AdamW8bit(engine, {}), StateError);
  });
}
