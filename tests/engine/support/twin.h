// Trains one model twice: by an engine on thread ranks, and without an engine, as the mean over the
// ranks.
#pragma once

#include <set>

#include "engine/engine_parts.h"
#include "support/models.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {

// A model of linear units of the same width. The test passes the root's forward.
struct GraphImpl : torch::nn::Module {
  using Body = std::function<at::Tensor(GraphImpl& graph, const at::Tensor& x)>;
  GraphImpl(int count, int64_t width, Body the_body)
      : body(std::move(the_body)), norm(torch::nn::LayerNormOptions({width})) {
    register_module("norm", norm);
    for (int i = 0; i < count; ++i) {
      units.emplace_back(width, width);
      register_module("u" + std::to_string(i), units.back());
    }
  }
  at::Tensor forward(const at::Tensor& x) { return body(*this, x); }
  Body body;
  torch::nn::LayerNorm norm;
  std::vector<Unit<torch::nn::Linear>> units;
  int step = 0, rank = 0;  // values on which the body may depend
};
TORCH_MODULE(Graph);

// Calls the units one after another. Most tests use this body.
inline at::Tensor in_a_row(GraphImpl& graph, const at::Tensor& x) {
  at::Tensor h = x;
  for (auto& unit : graph.units) h = torch::tanh(unit(h));
  return graph.norm(h);
}

enum class TwinOptimizer { kSgd, kAdam };

struct Twin {
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module& model, int step, int rank)> loss;
  int steps = 3;
  TwinOptimizer optimizer = TwinOptimizer::kSgd;
  // Called on every rank before each step. For the plain model it is called with a null engine.
  std::function<void(torch::nn::Module& model, Engine* engine, int step)> before_step = {};
};

inline at::Tensor graph_loss(torch::nn::Module& model, int step, int rank) {
  auto& graph = dynamic_cast<UnitImpl<GraphImpl>&>(model);
  graph.step = step;
  graph.rank = rank;
  const int64_t width = graph.norm->options.normalized_shape()[0];
  return (graph.call(values({3, width}, 100 * step + rank)) * values({3, width}, 77))
      .square()
      .mean();
}

inline Twin graph_twin(int count, int64_t width, GraphImpl::Body body) {
  return {.make = [=] { return Unit<Graph>(count, width, body).ptr(); }, .loss = graph_loss};
}

// Returns a twin whose embedding and head have weights so large that their gradients are zero-copy.
inline Twin lending_twin() {
  return {.make = [] { return Unit<Chain>(128, 1, 2221).ptr(); },
          .loss =
              [](torch::nn::Module& model, int step, int rank) {
                const auto call = [&](const at::Tensor& tokens) {
                  return dynamic_cast<UnitImpl<ChainImpl>&>(model).call(tokens);
                };
                return loss_of(call, batch_of(step, rank));
              },
          .steps = 2};
}

struct Trained {
  std::vector<float> losses;  // rank 0's
  std::map<std::string, at::Tensor> parameters;
};

inline std::unique_ptr<torch::optim::Optimizer> twin_optimizer(TwinOptimizer kind,
                                                               std::vector<at::Tensor> tensors) {
  if (kind == TwinOptimizer::kSgd) {
    return std::make_unique<torch::optim::SGD>(std::move(tensors), torch::optim::SGDOptions(0.2));
  }
  return std::make_unique<torch::optim::Adam>(std::move(tensors), torch::optim::AdamOptions(1e-2));
}

// Delays the communication streams before gathers and reductions, and the host after forwards. Each
// delay is 1 to 8 ms, with another pattern on each rank. If a wait is missing, the values come from
// unfinished or overwritten slots, and the test fails.
inline void inject_delays(Engine& engine, int rank) {
  auto count = std::make_shared<int>(rank);
  engine.observe_events([&engine, count](std::string_view event, std::string_view) {
    const auto pause = std::chrono::milliseconds(1 + (*count += 3) % 8);
    const auto sleep = [pause] { std::this_thread::sleep_for(pause); };
    ShardContext& context = *state_of(engine).context;
    if (event == "unshard") context.streams.gather->call(sleep);
    if (event == "reduce") context.streams.reduce->call(sleep);
    if (event == "reshard" && *count % 5 == 0) sleep();
  });
}

inline Trained train_sharded(const Twin& twin, const MeshShape& shape, const Options& options,
                             bool delays = false) {
  Trained trained;
  run_torch_ranks(shape, [&](Mesh mesh) {
    const auto model = build_seeded(7, twin.make);
    Engine engine(model, mesh, options);
    if (delays) inject_delays(engine, mesh.rank());
    const auto optimizer = twin_optimizer(twin.optimizer, engine.parameters());
    for (int step = 0; step < twin.steps; ++step) {
      if (twin.before_step) twin.before_step(*model, &engine, step);
      const at::Tensor loss = twin.loss(*model, step, mesh.rank());
      loss.backward();
      if (mesh.rank() == 0) trained.losses.push_back(loss.item<float>());
      optimizer->step();
      optimizer->zero_grad();
    }
    auto parameters = full_parameters(engine);
    if (mesh.rank() == 0) trained.parameters = std::move(parameters);
  });
  return trained;
}

inline Trained train_sharded(const Twin& twin, int world, const Options& options,
                             bool delays = false) {
  return train_sharded(twin, MeshShape{.shard = world}, options, delays);
}

// If `by_groups` is true, computes the mean over each group of ranks, then over the groups.
// Otherwise computes the mean over all ranks at once.
inline Trained train_plain(const Twin& twin, const MeshShape& shape, bool by_groups) {
  Trained trained;
  const auto model = build_seeded(7, twin.make);
  std::vector<at::Tensor> trainable;
  std::set<const c10::TensorImpl*> seen;  // parameters() lists a tied parameter twice
  for (const at::Tensor& parameter : model->parameters()) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    if (parameter.requires_grad()) trainable.push_back(parameter);
  }
  const auto optimizer = twin_optimizer(twin.optimizer, trainable);
  for (int step = 0; step < twin.steps; ++step) {
    if (twin.before_step) twin.before_step(*model, nullptr, step);
    const auto backward_of_rank = [&](int rank) {
      const at::Tensor loss = twin.loss(*model, step, rank);
      loss.backward();
      if (rank == 0) trained.losses.push_back(loss.item<float>());
    };
    if (by_groups) {
      mean_gradients_by_groups(*model, shape, backward_of_rank);
    } else {
      mean_gradients(*model, shape.size(Axis::kWorld), backward_of_rank);
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  trained.parameters = plain_parameters(*model);
  return trained;
}

inline Trained train_plain(const Twin& twin, int world) {
  return train_plain(twin, MeshShape{.shard = world}, /*by_groups=*/false);
}

inline void check_same_bits(const Trained& sharded, const Trained& plain) {
  CHECK(sharded.losses == plain.losses);
  for (const auto& [fqn, value] : sharded.parameters) {
    CAPTURE(fqn);
    CHECK(bit_equal(value, plain.parameters.at(fqn)));
  }
}

inline void check_close(const Trained& sharded, const Trained& plain) {
  REQUIRE(sharded.losses.size() == plain.losses.size());
  for (size_t i = 0; i < plain.losses.size(); ++i) {
    CHECK(sharded.losses[i] == doctest::Approx(plain.losses[i]).epsilon(1e-5));
  }
  for (const auto& [fqn, value] : sharded.parameters) {
    CAPTURE(fqn);
    CHECK(torch::allclose(value, plain.parameters.at(fqn), 1e-5, 1e-6));
  }
}

// Compares bits on 1, 2 and 3 ranks, with and without reshard, with inline and threaded streams. On
// a simulated GPU, an even number of ranks runs without reshard.
inline void check_twin(const Twin& twin) {
  for (const int world : {1, 2, 3}) {
    const Trained plain = train_plain(twin, world);
    for (const bool reshard : {true, false}) {
      if (!is_tried(world + (reshard ? 1 : 0))) continue;
      CAPTURE(world);
      CAPTURE(reshard);
      const auto streams = reshard ? CpuStreamKind::kInline : CpuStreamKind::kThreaded;
      check_same_bits(train_sharded(twin, world,
                                    {.reshard_after_forward = reshard,
                                     .debug = true,
                                     .tuning = {.cpu_streams = streams}}),
                      plain);
    }
  }
}

}  // namespace fsdp::testing
