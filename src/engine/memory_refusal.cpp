#include "engine/memory_refusal.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_pass.h"
#include "fsdp/program_text.h"
#include "plan/remedies.h"
#include "runtime/out_of_memory.h"

namespace fsdp {
namespace {

using Passes = std::vector<const EnginePass*>;

// Returns the running unit and its phase, as "backward of unit 'layers.0'".
std::string place_of(const BackwardScheduler& scheduler) {
  const auto [unit, phase] = scheduler.running();
  if (unit == nullptr) return "outside of units";
  const std::string_view what = phase == BackwardScheduler::Phase::kForward     ? "forward"
                                : phase == BackwardScheduler::Phase::kRecompute ? "recomputation"
                                                                                : "backward";
  const auto& pass = static_cast<const EnginePass&>(*unit->engine);
  return pass.unit_at(unit->index).describe(what);
}

// Returns true if a forward has begun. Before the first forward, a refused allocation is an
// error of the configuration: the model or the optimizer's state does not fit.
bool has_begun(const BackwardScheduler& scheduler, const Passes& engines) {
  return scheduler.running().unit != nullptr ||
         std::ranges::any_of(engines, [](const EnginePass* engine) {
           return engine->count() > 0 || engine->schedule().active_calls() > 0 ||
                  engine->schedule().recorded_calls() > 0;
         });
}

int64_t planned_bytes(const Passes& engines) {
  int64_t bytes = 0;
  for (const EnginePass* engine : engines) bytes += engine->parts().memory.plan().held_bytes;
  return bytes;
}

// Returns "held: 40.2 MiB by the engine (main shards 10.0 MiB, …) and 20.0 MiB by LibTorch;
// planned: …".
std::string describe_held(const Passes& engines, const MemoryDemand& demand) {
  MemoryBytes in_use;
  for (const EnginePass* engine : engines) {
    const MemoryBytes& own = engine->parts().context.memory.ledger.stats().in_use;
    for (size_t i = 0; i < in_use.bytes.size(); ++i) in_use.bytes[i] += own.bytes[i];
  }
  std::vector<std::string> parts;
  for (int i = 0; i < kMemoryCategories; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    if (in_use[category] == 0) continue;
    parts.push_back(fmt::format("{} {}", name_of(category), format_bytes(in_use[category])));
  }
  const int64_t rest = demand.now.engine - in_use.total();
  // The rest is memory that the ledgers do not count as in use: free slots and new buffers.
  if (rest > 0) parts.push_back("other " + format_bytes(rest));
  return fmt::format("held: {} by the engine{} and {} by LibTorch; planned: {} by the engine",
                     format_bytes(demand.now.engine),
                     parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, ", ")),
                     format_bytes(demand.now.torch), format_bytes(planned_bytes(engines)));
}

// Returns option changes that save memory, cheapest first. If `for_tensors` is false, returns only
// changes that reduce the engine's own buffers.
std::string remedies_of(const EnginePass& pass, bool for_tensors) {
  const EnginePass::Parts& engine = pass.parts();
  const bool gathers = engine.memory.plan().forward_peak[MemoryCategory::kParameterSlots] > 0;
  std::vector<std::string_view> ways;
  for (const Remedy& remedy :
       remedies(engine.model.options, {.gathers = gathers,
                                      .one_rank = engine.context.comms.one_rank(),
                                      .reduces = pass.schedule().reduces(),
                                      .for_tensors = for_tensors})) {
    ways.push_back(remedy.text);
  }
  return fmt::format("try in order of cost: {}", fmt::join(ways, "; "));
}

}  // namespace

MemoryMeter::Refuse refuse_beyond_limit(const std::shared_ptr<BackwardScheduler>& scheduler) {
  // The reference is weak, because the meter and this function may outlive the engines.
  return [shared = std::weak_ptr<BackwardScheduler>(scheduler)](const MemoryDemand& demand) {
    const auto scheduler = shared.lock();
    if (!scheduler) return;
    // The allocating thread may hold locks of LibTorch, and the thread that holds the mutex may
    // wait for such a lock. Blocking on the mutex here could deadlock. If the mutex is not free,
    // the meter throws its plain error.
    const std::unique_lock lock(scheduler->mutex, std::try_to_lock);
    if (!lock) return;
    const Passes engines = passes_of(*scheduler);
    if (engines.empty()) return;
    const ScheduledUnit* unit = scheduler->running().unit;
    const EnginePass& engine =
        unit != nullptr ? static_cast<const EnginePass&>(*unit->engine) : *engines.back();
    if (demand.of == MemoryOwner::kEngine && !has_begun(*scheduler, engines)) {
      throw InvalidArgument(
          {.what = MemoryMeter::describe(demand),
           .where = "Options::memory_limit",
           .cause = describe_held(engines, demand),
           .hint = "raise the limit, or " + remedies_of(engine, /*for_tensors=*/false)});
    }
    throw OutOfMemory(
        {.what = MemoryMeter::describe(demand),
         .where = demand.of == MemoryOwner::kTorch ? place_of(*scheduler) : std::string(),
         .cause = describe_held(engines, demand),
         .hint = remedies_of(engine, /*for_tensors=*/true)});
  };
}

void require_within_limit(const BackwardScheduler& scheduler, int64_t limit) {
  const Passes engines = passes_of(scheduler);
  const int64_t planned = planned_bytes(engines);
  if (limit == 0 || planned <= limit) return;
  throw InvalidArgument(
      {.what = fmt::format("the memory limit of {} is less than the {} that the engine will hold",
                           format_bytes(limit), format_bytes(planned)),
       .where = "Options::memory_limit",
       .cause = "the plan counts the engine's own buffers, without LibTorch's tensors",
       .hint = "raise the limit, or " + remedies_of(*engines.back(), /*for_tensors=*/false)});
}

}  // namespace fsdp
