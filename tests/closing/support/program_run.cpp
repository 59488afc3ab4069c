#include "closing/support/program_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <set>

#include "closing/support/event_lists.h"
#include "closing/support/program_model.h"
#include "comm/mesh_state.h"
#include "fsdp/error.h"
#include "support/collective_log.h"
#include "support/torch_ranks.h"

namespace fsdp::testing {
namespace {

constexpr float kLearningRate = 1.0F / 64;  // a power of two: the product is exact
using Shared = std::shared_ptr<const Program>;

// A gradient that arrives at a parameter.
struct Arrival {
  size_t parameter = 0;
  at::Tensor gradient;
};

template <class Log>
void log_gradients(torch::nn::Module& module, Log log) {
  const Tensors parameters = module.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].requires_grad()) continue;
    parameters[i].register_hook([i, log](const at::Tensor& gradient) { log(i, gradient); });
  }
}

// This rank's slice of a parameter after a step.
struct Slice {
  int64_t begin = 0;
  at::Tensor gradient, value;
};
struct RankStep {
  std::vector<float> losses;
  std::vector<std::string> events;
  std::vector<std::vector<int>> arrivals_at_reduce;  // by parameter: arrivals before each reduce
  std::vector<int> arrivals;                         // by parameter: all arrivals
  std::map<std::string, Slice> slices;
  Tensors buffers;
};
struct RankRun {
  std::vector<std::string> collectives;
  std::vector<RankStep> steps;
};

// Returns how units are chosen. Options::units also decides how the model is made.
Boundaries boundaries_of(const Options& options) {
  return options.units.is_set() ? Boundaries::kPolicy : Boundaries::kUnits;
}

void run_inside(Engine& engine, ProgramModel& model) {
  model.scene->in_forward = [&engine](const SegmentForward& forward, Tensors inputs) {
    return engine.forward(forward, std::move(inputs));
  };
}

// Runs a backward that throws at its n-th pre_backward on all ranks. Recovers as programs do.
void fail_backward(ProgramModel& model, Engine& engine, int at) {
  int left = at;
  const Tensors buffers = buffers_of(*model.root);
  engine.observe_events([&](std::string_view event, std::string_view) {
    if (event == "pre_backward" && left-- == 0) throw std::runtime_error("thrown by the test");
  });
  try {
    run_plan(model);
  } catch (const std::runtime_error& error) {
    if (std::string_view(error.what()) != "thrown by the test") throw;
  }
  engine.observe_events(nullptr);
  engine.zero_grad();
  model.root->train();
  set_buffers(*model.root, buffers);
}

// Makes one step of plain SGD and returns its results.
std::map<std::string, Slice> step_slices(Engine& engine) {
  const at::NoGradGuard no_grad;
  std::map<std::string, Slice> slices;
  for (const ShardedParameter& parameter : engine.sharded_parameters()) {
    at::Tensor local = parameter.local;
    Slice slice{.begin = parameter.begin, .gradient = {}, .value = {}};
    if (local.grad().defined()) {
      slice.gradient = local.grad().clone();
      local.add_(local.grad(), -kLearningRate);
    }
    slice.value = local.detach().clone();
    slices[parameter.fqn] = std::move(slice);
  }
  engine.zero_grad();
  return slices;
}

// Compares bits, because values that overflowed must be equal too.
bool have_equal_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof a[0]) == 0;
}

// The same program on a second engine of the same mesh.
struct EngineTwin {
  EngineTwin(const Shared& program, const Mesh& mesh, const Options& options)
      : model(program, boundaries_of(options)),
        engine((bind(mesh.rank()), model.root), mesh, options) {
    run_inside(engine, model);
  }
  void bind(int rank) {
    model.scene->plain = false;
    model.scene->rank = rank % kProgramRanks;
  }
  void step(int number) {
    model.scene->step = number;
    losses = run_plan(model);
    slices = step_slices(engine);
  }
  void compare(const RankStep& first) const {
    if (!have_equal_bits(losses, first.losses))
      throw std::runtime_error("the twin's losses differ");
    for (const auto& [fqn, slice] : slices) {
      if (bit_equal(slice.value, first.slices.at(fqn).value)) continue;
      throw std::runtime_error("the twin's values of '" + fqn + "' differ");
    }
  }

  ProgramModel model;
  Engine engine;
  std::vector<float> losses;
  std::map<std::string, Slice> slices;
};

RankRun run_rank(const Shared& program, Mesh mesh, const Options& options) {
  ProgramModel model(program, boundaries_of(options));
  model.scene->plain = false;
  model.scene->rank = mesh.rank() % kProgramRanks;
  std::vector<std::string> fqns;
  for (const auto& item : model.root->named_parameters()) fqns.push_back(item.key());
  const auto names = unit_names(*program);
  const CollectiveLog collectives(mesh);
  RankRun result{.collectives = {}, .steps = std::vector<RankStep>(kProgramSteps)};
  RankStep* now = nullptr;
  log_gradients(*model.root, [&now](size_t i, const at::Tensor&) { ++now->arrivals[i]; });
  Engine engine(model.root, mesh, options);
  run_inside(engine, model);
  std::optional<EngineTwin> twin;
  if (program->has_twin) twin.emplace(program, mesh, options);
  const auto observe = [&](std::string_view event, std::string_view unit) {
    if (now == nullptr) return;
    now->events.push_back(fmt::format("{} '{}'", event, unit));
    if (event != "reduce") return;
    for (size_t i = 0; i < fqns.size(); ++i) {
      if (names.at(unit_of(fqns[i])) != unit) continue;
      now->arrivals_at_reduce[i].push_back(now->arrivals[i]);
    }
  };
  for (int step = 0; step < kProgramSteps; ++step) {
    now = &result.steps[step];
    now->arrivals.assign(fqns.size(), 0);
    now->arrivals_at_reduce.resize(fqns.size());
    model.scene->step = step;
    if (program->throws_at >= 0) fail_backward(model, engine, program->throws_at);
    now->arrivals.assign(fqns.size(), 0);
    engine.observe_events(observe);
    if (twin && step % 2 == 0) twin->step(step);
    now->losses = run_plan(model);
    if (twin && step % 2 == 1) twin->step(step);
    now->slices = step_slices(engine);
    now->buffers = buffers_of(*model.root);
    if (twin) twin->compare(*now);
  }
  result.collectives = collectives.lines();
  return result;
}

std::string compare_lists(const std::vector<RankRun>& ranks) {
  for (size_t rank = 1; rank < ranks.size(); ++rank) {
    const std::string collectives = first_difference(ranks[0].collectives, ranks[rank].collectives);
    if (!collectives.empty())
      return fmt::format("collectives of ranks 0, {}: {}", rank, collectives);
    for (int step = 0; step < kProgramSteps; ++step) {
      const std::string events =
          first_difference(ranks[0].steps[step].events, ranks[rank].steps[step].events);
      if (!events.empty()) return fmt::format("events of ranks 0, {}: {}", rank, events);
    }
  }
  return {};
}

// Runs the plain model for each rank, and computes means in the groups of the engine's reductions.
class PlainRun {
 public:
  PlainRun(const Shared& program, const MeshShape& shape, Boundaries boundaries)
      : shape_(shape), model_(program, boundaries) {
    log_gradients(*model_.root, [this](size_t i, const at::Tensor& gradient) {
      arrivals_.push_back({i, gradient.defined() ? gradient.clone() : at::Tensor()});
    });
    for (const auto& item : model_.root->named_parameters()) {
      fqns_.push_back(item.key());
      parameters_.push_back(item.value());
    }
  }

  std::string compare_step(const std::vector<RankRun>& ranks, int step) {
    std::vector<std::vector<std::vector<at::Tensor>>> gradients;  // by rank, parameter, arrival
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const std::vector<float> losses = run(step, static_cast<int>(rank));
      is_finite_ =
          is_finite_ && is_finite() &&
          std::all_of(losses.begin(), losses.end(), [](float x) { return std::isfinite(x); });
      if (!is_finite_) return {};
      if (losses != ranks[rank].steps[step].losses) {
        return fmt::format("loss of rank {} in step {}", rank, step);
      }
      if (!std::ranges::equal(buffers_[rank], ranks[rank].steps[step].buffers, bit_equal)) {
        return fmt::format("buffers of rank {} in step {}", rank, step);
      }
      gradients.emplace_back(fqns_.size());
      for (Arrival& each : arrivals_) gradients.back()[each.parameter].push_back(each.gradient);
    }
    for (size_t i = 0; i < fqns_.size(); ++i) {
      const std::string failure = compare_parameter(ranks, step, i, gradients);
      if (!failure.empty()) return fmt::format("'{}' in step {}: {}", fqns_[i], step, failure);
    }
    return {};
  }
  std::vector<float> run(int step, int rank) {
    arrivals_.clear();
    model_.scene->step = step;
    model_.scene->rank = rank % kProgramRanks;
    const Tensors& buffers = buffers_.try_emplace(rank, first_buffers_).first->second;
    set_buffers(*model_.root, buffers);
    std::vector<float> losses = run_plan(model_);
    buffers_[rank] = buffers_of(*model_.root);
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
    return losses;
  }
  // Returns true if no value has overflowed. Only then equal bits prove something.
  bool stayed_finite() const { return is_finite_; }
  bool is_finite() const {
    return std::all_of(arrivals_.begin(), arrivals_.end(), [](const Arrival& each) {
      return !each.gradient.defined() || each.gradient.isfinite().all().item<bool>();
    });
  }

 private:
  using Gradients = std::vector<std::vector<std::vector<at::Tensor>>>;

  std::string compare_parameter(const std::vector<RankRun>& ranks, int step, size_t i,
                                const Gradients& gradients) {
    const size_t groups =  // a unit with frozen parameters may reduce only its others
        parameters_[i].requires_grad() ? ranks[0].steps[step].arrivals_at_reduce[i].size() : 0;
    at::Tensor mean;
    for (size_t group = 0; group < groups; ++group) {
      std::vector<at::Tensor> sums;  // by group of ranks
      for (size_t rank = 0; rank < ranks.size(); ++rank) {
        const std::vector<int>& ends = ranks[rank].steps[step].arrivals_at_reduce[i];
        at::Tensor own = torch::zeros_like(parameters_[i]);
        bool any = false;
        for (int arrival = group == 0 ? 0 : ends[group - 1]; arrival < ends[group]; ++arrival) {
          const at::Tensor& gradient = gradients[rank][i].at(arrival);
          if (!gradient.defined()) continue;
          own = any ? own + gradient : gradient;
          any = true;
        }
        if (rank % shape_.shard == 0) {
          sums.push_back(own.clone());
        } else {
          sums.back() = sums.back() + own;
        }
      }
      at::Tensor sum = sums.front() / shape_.shard;
      for (size_t other = 1; other < sums.size(); ++other) sum = sum + sums[other] / shape_.shard;
      if (sums.size() > 1) sum = sum / shape_.replicate;
      mean = group == 0 ? sum : mean + sum;
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const RankStep& got = ranks[rank].steps[step];
      const size_t expected = gradients[rank][i].size();
      if (static_cast<size_t>(got.arrivals[i]) != expected) {
        return fmt::format("{} gradients arrived on rank {}, {} in plain torch", got.arrivals[i],
                           rank, expected);
      }
      const bool is_empty = parameters_[i].numel() == 0;  // an empty parameter is not reduced
      if (expected > 0 && !is_empty &&
          (groups == 0 || got.arrivals_at_reduce[i].back() < got.arrivals[i])) {
        return fmt::format("a gradient of rank {} was never reduced", rank);
      }
    }
    if (mean.defined()) {
      const at::NoGradGuard no_grad;
      at::Tensor parameter = parameters_[i];
      parameter.add_(mean, -kLearningRate);
    }
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const Slice& slice = ranks[rank].steps[step].slices.at(fqns_[i]);
      const auto same = [&](const at::Tensor& whole, const at::Tensor& part) {
        return bit_equal(whole.detach().flatten().narrow(0, slice.begin, part.numel()), part);
      };
      if (mean.defined() != slice.gradient.defined() && slice.value.numel() > 0) {
        return "a gradient is missing, or one too many";
      }
      if (mean.defined() && slice.gradient.defined() && !same(mean, slice.gradient)) {
        return fmt::format("gradient of rank {}", rank);
      }
      if (!same(parameters_[i], slice.value)) return fmt::format("values on rank {}", rank);
    }
    return {};
  }

  const MeshShape shape_;
  ProgramModel model_;
  std::vector<std::string> fqns_;
  Tensors parameters_;
  std::vector<Arrival> arrivals_;
  const Tensors first_buffers_ = buffers_of(*model_.root);
  std::map<int, Tensors> buffers_;  // by rank
  bool is_finite_ = true;
};

void count_events(const RankRun& rank, ProgramRun& result) {
  for (const RankStep& step : rank.steps) {
    std::set<std::string> bound;
    for (const std::string& event : step.events) {
      const size_t space = event.find(' ');
      const std::string name = event.substr(0, space), unit = event.substr(space + 1);
      if (name == "pre_backward") ++result.fired_calls;
      if (name == "unshard") {
        bound.insert(unit);
        ++result.gathers;
      }
      if (name == "reshard") bound.erase(unit);
      if (name == "reduce") {
        ++result.reduces;
        ++result.reduces_of[unit];
      }
      result.bound = std::max(result.bound, static_cast<int>(bound.size()));
    }
  }
}

}  // namespace

bool is_valid(const Program& program, Boundaries boundaries) {
  at::set_num_threads(1);
  try {
    PlainRun plain(std::make_shared<const Program>(program), {.shard = kProgramRanks}, boundaries);
    for (int step = 0; step < kProgramSteps; ++step) {
      for (int rank = 0; rank < kProgramRanks; ++rank) {
        plain.run(step, rank);
        if (!plain.is_finite()) return false;
      }
    }
  } catch (const c10::Error&) {
    return false;
  } catch (const InvalidArgument&) {  // a recomputed segment changed its input in place
    return false;
  }
  return true;
}

ProgramRun run_program(const Program& given, Options options) {
  const auto program = std::make_shared<const Program>(given);
  options.debug = true;
  const MeshShape shape = is_by_groups(options.strategy)
                              ? MeshShape{.replicate = 2, .shard = 2}
                              : MeshShape{.replicate = 1, .shard = kProgramRanks};
  RunRanksOptions run_options = torch_ranks_options();
  run_options.mesh.replicate = shape.replicate;
  std::vector<RankRun> ranks(shape.size(Axis::kWorld));
  const std::vector<std::string> errors = errors_of_ranks(
      shape.size(Axis::kWorld),
      [&](Mesh mesh) { ranks[mesh.rank()] = run_rank(program, mesh, options); }, run_options);
  ProgramRun result;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (errors[rank].empty()) continue;
    // LibTorch appends a stack trace to the text. It is removed.
    const std::string text = errors[rank].substr(0, errors[rank].find("\nException raised from"));
    result.failure += fmt::format("rank {} threw: {}\n", rank, text);
  }
  if (result.failure.empty()) result.failure = compare_lists(ranks);
  if (!result.failure.empty()) return result;
  PlainRun plain(program, shape, boundaries_of(options));
  for (int step = 0; step < kProgramSteps && result.failure.empty(); ++step) {
    result.failure = plain.compare_step(ranks, step);
    if (!plain.stayed_finite()) break;
  }
  result.is_finite = plain.stayed_finite();
  count_events(ranks[0], result);
  return result;
}

}  // namespace fsdp::testing
