#include <fmt/format.h>
#include <fsdp/optim.h>
#include <fsdp/plan.h>
#include <fsdp/sync_batch_norm.h>

#include "fsdp/program_text.h"
#include "support/models.h"
#include "support/torch_ranks.h"

using namespace fsdp;
using namespace fsdp::testing;

namespace {

Unit<Chain> tiny() { return Unit<Chain>(16, 2); }
at::Tensor chain_loss(Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); }

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// A model whose forward is passed to it.
struct GivenImpl : torch::nn::Module {
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  explicit GivenImpl(Forward forward_of, std::function<void()> in_constructor = {})
      : run(std::move(forward_of)), weight(register_parameter("weight", torch::ones({8, 8}))) {
    if (in_constructor) in_constructor();
  }
  at::Tensor forward(const at::Tensor& x) { return run(at::matmul(x, weight)); }
  Forward run;
  at::Tensor weight;
};
TORCH_MODULE(Given);

StepPlan plan_of(GivenImpl::Forward forward, std::function<void()> in_constructor = {}) {
  return plan(
      {.ranks = 2}, [&] { return Unit<Given>(forward, in_constructor); },
      [](Unit<Given>& model) {
        return model(torch::ones({4, 8})).sum();
      });
}

}  // namespace

TEST_CASE("a step without a loss, and an optimizer whose blocks are cut, are refused") {
  CHECK(says(error_of([] { plan({}, tiny, [](auto&) { return at::Tensor(); }); }),
             "returned no loss that requires grad"));
  CHECK(says(error_of([] { plan({}, tiny, [](auto&) { return torch::ones({}); }); }),
             "returned no loss that requires grad"));
  CHECK(says(error_of([] { plan({.optimizer = OptimizerKind::kAdamW8bit}, tiny, chain_loss); }),
             "Options::shard_granule is 1, but AdamW8bit needs a multiple of 256"));
}

TEST_CASE("ranks that do not fit the mesh are refused as by a run") {
  CHECK(says(error_of([] { plan({.ranks = 0}, tiny, chain_loss); }), "cannot plan ranks = 0"));
  CHECK(says(error_of([] { plan({.ranks = 6, .mesh = {.shard = 4}}, tiny, chain_loss); }),
             "6 ranks cannot be divided into groups of 4"));
  CHECK(says(error_of([] { plan({.ranks = 6, .ranks_per_host = 4}, tiny, chain_loss); }),
             "6 ranks cannot be divided into hosts of 4 ranks"));
}

TEST_CASE("what needs values is refused by its operator and its unit") {
  const std::string text =
      error_of([] { plan_of([](const at::Tensor& x) { return x.index({at::nonzero(x)}); }); });
  CHECK(says(text, "aten::nonzero reads values"));
  CHECK(says(text, "in the forward of unit '(root)'"));
  CHECK(says(text, "hint:"));
  CHECK(
      says(error_of([] { plan_of([](const at::Tensor& x) { return x * x.sum().item<float>(); }); }),
           "in the forward of unit '(root)'"));
}

TEST_CASE(
    "the memory of a tensor that is planned cannot be touched, and the error says what to do") {
  const std::string in_forward = error_of([] {
    plan_of([](const at::Tensor& x) {
      at::Tensor table = torch::zeros({8});
      table.accessor<float, 1>()[0] = 1;
      return x * table;
    });
  });
  CHECK(says(in_forward, "create the tensors that the host reads or writes on torch::kCPU"));
  const std::string in_constructor = error_of([] {
    plan_of([](const at::Tensor& x) { return x; },
            [] { *torch::zeros({8}).data_ptr<float>() = 1; });
  });
  CHECK(says(in_constructor, "on torch::kCPU"));
}

TEST_CASE("tensors that the host has made meet those that are planned") {
  const at::Tensor captured = torch::arange(8, torch::kFloat);
  const auto plan = plan_of([&](const at::Tensor& x) {
    at::Tensor table = torch::zeros({8}, torch::kCPU);
    table.accessor<float, 1>()[0] = 1;
    const at::Tensor list = torch::tensor({1, 2, 3, 4, 5, 6, 7, 0}, torch::kLong);
    return at::cat({x * table, (x + captured).to(torch::kCPU).index_select(1, list)}, 0);
  });
  CHECK(plan.torch.backward_peak > 0);
  CHECK(plan.notes.empty());
}

TEST_CASE("an operator that runs on zeros is named in the plan, and a large one is refused") {
  const auto padded = [](const at::Tensor& x) {
    return at::reflection_pad2d(x.view({1, 1, 4, 8}), {1, 1, 1, 1});
  };
  const std::vector<std::string> notes = plan_of(padded).notes;
  REQUIRE(notes.size() == 2);
  CHECK(says(notes[0], "aten::reflection_pad2d"));
  CHECK(says(notes[1], "aten::reflection_pad2d_backward"));
  const std::string large = error_of([&] {
    plan_of([](const at::Tensor& x) {
      return at::reflection_pad2d(x.repeat({1 << 12, 1 << 12}).view({1, 1, -1, 8}), {1, 1, 1, 1});
    });
  });
  CHECK(says(large, "aten::reflection_pad2d has no kernel"));
  CHECK(says(large, "that a plan may fill with zeros to run it"));
}

TEST_CASE("a plan draws no random numbers and leaves none of its own behind") {
  torch::manual_seed(3);
  const at::Tensor expected = torch::randn({4});
  torch::manual_seed(3);
  static_cast<void>(plan({.ranks = 2}, tiny, chain_loss));
  CHECK(bit_equal(torch::randn({4}), expected));
  CHECK(torch::zeros({2}).is_cpu());
}

TEST_CASE("a model larger than any memory is planned") {
  const StepPlan plan = fsdp::plan(
      {.ranks = 4096}, [] { return Unit<Chain>(1 << 15, 4, 1 << 20); },
      [](Unit<Chain>& model) { return loss_of(model, batch_of(0, 0)); });
  CHECK(plan.parameters > int64_t{1} << 36);
  CHECK(plan.units == 7);
  CHECK(plan.memory.rest.total() > 12 * (plan.parameters / 4096));
}

TEST_CASE("normalisation over all ranks' batches is planned") {
  struct NormedImpl : torch::nn::Module {
    explicit NormedImpl(const Mesh& mesh)
        : norm(register_module("norm", SyncBatchNorm(torch::nn::BatchNormOptions(8), mesh))) {}
    at::Tensor forward(const at::Tensor& x) { return norm(x); }
    SyncBatchNorm norm;
  };
  struct Normed : torch::nn::ModuleHolder<NormedImpl> {
    using torch::nn::ModuleHolder<NormedImpl>::ModuleHolder;
  };
  // The mesh is made by the caller and has one rank.
  const Mesh mesh = Mesh::single();
  const std::string text = error_of([&] {
    plan(
        {.ranks = 2}, [&] { return Unit<Normed>(mesh); },
        [](Unit<Normed>& model) {
          return model(torch::ones({4, 8})).sum();
        });
  });
  CHECK(text == "no error");
}

TEST_CASE("bytes on the wire follow the formulas") {
  // Checks a step in fp32. Parameters are gathered twice, except for the root's, and reduced once.
  const StepPlan two = plan({.ranks = 2}, tiny, chain_loss);
  CHECK(two.traffic.world.gathers == 9);
  CHECK(two.traffic.world.reductions == 5);
  const StepPlan one = plan({}, tiny, chain_loss);
  CHECK(one.traffic.world.gathered_bytes == 0);
  CHECK(one.traffic.world.reduced_bytes == 0);
  const StepPlan ddp =
      plan({.ranks = 4, .options = {.strategy = Strategy::kReplicate}}, tiny, chain_loss);
  CHECK(ddp.traffic.world.gathers == 0);
  CHECK(ddp.traffic.world.reduced_bytes >= 2 * 3 * 4 * ddp.parameters / 4);
}

TEST_CASE("processes of one host read large units where they lie: no slot, and no gather") {
  const auto make = [] { return Unit<Chain>(256, 2); };
  const Options resharding{};
  const PlanRequest request{.ranks = 2, .maps_shards = true, .options = resharding};
  const StepPlan mapped = plan(request, make, chain_loss);
  const StepPlan gathered = plan({.ranks = 2}, make, chain_loss);
  // The blocks are mapped. Segments with less than 256 KiB a rank are gathered.
  CHECK(mapped.traffic.world.gathers == gathered.traffic.world.gathers - 4);
  CHECK(mapped.memory.held_bytes < gathered.memory.held_bytes);
  PlanRequest unmapped = request;
  unmapped.options.tuning.map_shards = false;
  CHECK(plan(unmapped, make, chain_loss).memory.held_bytes == gathered.memory.held_bytes);
}

TEST_CASE("a GPU's streams run beside compute, as threads of the host do") {
  const auto held = [](const PlanRequest& request) {
    return plan(
               request, [] { return Unit<Chain>(16, 4); }, chain_loss)
        .memory.held_bytes;
  };
  const int64_t on_gpu = held({.ranks = 2, .mesh = {.device = DeviceKind::kCuda}});
  CHECK(on_gpu ==
        held({.ranks = 2, .options = {.tuning = {.cpu_streams = CpuStreamKind::kThreaded}}}));
  CHECK(on_gpu > held({.ranks = 2}));
}

struct LinearsImpl : torch::nn::Module {
  explicit LinearsImpl(int count) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module(
          std::to_string(i), torch::nn::Linear(torch::nn::LinearOptions(200, 200).bias(false))));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    return x;
  }
  std::vector<torch::nn::Linear> layers;
};
TORCH_MODULE(Linears);

TEST_CASE("on a GPU LibTorch's bytes have the small gradients that wait for their unit's close") {
  constexpr int64_t kEach = 200 * 200 * 4, kLayers = 8;
  const auto peak = [](DeviceKind device) {
    return plan(
               {.ranks = 2, .mesh = {.device = device}}, [] { return Unit<Linears>(8); },
               [](Unit<Linears>& model) {
                 return model(torch::ones({4, 200})).sum();
               })
        .torch.backward_peak;
  };
  const int64_t waiting = peak(DeviceKind::kCuda) - peak(DeviceKind::kCpu);
  CHECK(waiting > (kLayers - 2) * kEach);
  CHECK(waiting <= kLayers * kEach);
}

TEST_CASE("the table for people has no line of more than 80 columns") {
  const std::string text = plan({.ranks = 2}, tiny, chain_loss).to_string();
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() <= 80);
  CHECK(says(text, "held by the engine"));
  CHECK_FALSE(says(text, "offloaded"));
  const PlanRequest offloaded{.ranks = 2, .options = {.cpu_offload = true}};
  CHECK(says(plan(offloaded, tiny, chain_loss).to_string(), "held on the host"));
}

TEST_CASE("a plan in a line says strategy, ranks, units, and bytes at rest and at peak") {
  const StepPlan two =
      plan({.ranks = 2, .options = {.strategy = Strategy::kZero2}}, tiny, chain_loss);
  CHECK(two.summary() == fmt::format("zero2 on 2 ranks, {} units: {} a rank at rest, {} at peak",
                                     two.units,
                                     format_bytes(two.memory.rest.total() + two.torch.rest),
                                     format_bytes(two.peak_bytes())));
  CHECK(says(plan({.ranks = 1}, tiny, chain_loss).summary(), "full-shard on 1 rank, "));
  const PlanRequest offloaded{.ranks = 2, .options = {.cpu_offload = true}};
  CHECK(says(plan(offloaded, tiny, chain_loss).summary(), " on the host"));
  StepPlan limited{.refused_at = "forward of unit 'b'", .notes = {"op was run on zeros"}};
  CHECK(limited.summary() ==
        "full-shard on 1 rank, 0 units: 0 B a rank at rest, 0 B at peak; more than the memory "
        "limit from: forward of unit 'b'\nnote: op was run on zeros");
}

TEST_CASE("a model by policy is planned as its run takes it, in units of one layer or several") {
  const auto make = [] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 7; ++i) layers->push_back(torch::nn::Linear(32, 32));
    return layers;
  };
  const auto loss = [](torch::nn::Sequential& layers) {
    return layers->forward(torch::ones({4, 32})).sum();
  };
  for (const int layers_of_unit : {1, 2, 4, 7}) {
    CAPTURE(layers_of_unit);
    const Options options{.units = each_child_of("", layers_of_unit)};
    const StepPlan planned =
        plan({.ranks = 2, .options = options, .optimizer = OptimizerKind::kSgd}, make, loss);
    CHECK(planned.units == 1 + (7 + layers_of_unit - 1) / layers_of_unit);
    CHECK(planned.traffic.world.gathers == 2 * (planned.units - 1));
    run_torch_ranks(2, [&](Mesh mesh) {
      torch::nn::Sequential layers = build_seeded(4, make);
      Engine engine(layers, mesh, options);
      for (int step = 0; step < 3; ++step) {
        engine.reset_peak_memory();
        engine
            .forward([&](const at::Tensor& x) { return layers->forward(x).sum(); },
                     torch::ones({4, 32}).to(engine.device()))
            .backward();
        engine.zero_grad();
      }
      CHECK(engine.memory_plan().peak_bytes() == planned.memory.peak_bytes());
      CHECK(engine.memory_plan().held_bytes == planned.memory.held_bytes);
      CHECK(engine.stats().memory.peak.total() == planned.memory.peak_bytes());
      CHECK(engine.stats().memory.held_bytes == planned.memory.held_bytes);
    });
  }
}
