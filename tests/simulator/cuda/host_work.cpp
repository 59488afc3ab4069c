#include "simulator/cuda/host_work.h"

#include <fmt/format.h>

#include <functional>
#include <utility>

#include "simulator/cuda/simulation.h"
#include "simulator/guarded_memory.h"

namespace fsdp::testing::sim {
namespace {

// Calls act(simulation) if a simulation exists. A refused call becomes a report.
void with_simulation(std::string_view name, const std::function<void(Simulation&)>& act) {
  const std::lock_guard lock(runtime_mutex());
  Simulation* const simulation = current_simulation();
  if (simulation == nullptr) return;
  try {
    act(*simulation);
  } catch (const Refusal& refusal) {
    simulation->report(fmt::format("{}: {}", name, refusal.what()));
  } catch (const ptx::Objection& objection) {
    simulation->report(fmt::format("{}: {}", name, objection.what()));
  }
}

}  // namespace

HostWork::HostWork(cudaStream_t stream, std::string_view name,
                   std::span<const TouchedBytes> touched) {
  with_simulation(name, [&](Simulation& simulation) {
    operation_ = &simulation.begin_at_once(simulation.stream(stream), std::string(name));
    simulation_ = &simulation;
  });
  GuardedMemory::instance().open();
  this->touched(touched);
}

HostWork::~HostWork() { GuardedMemory::instance().close(); }

void HostWork::touched(std::span<const TouchedBytes> more) {
  if (operation_ == nullptr) return;
  for (const TouchedBytes& bytes : more) {
    with_simulation(operation_->name, [&](Simulation& simulation) {
      if (&simulation != simulation_ || bytes.count == 0) return;
      // On a lost device the constructor has defined nothing.
      if (simulation.is_lost(operation_->stream->device)) return;
      if (simulation.memory().place_of(bytes.begin) == Place::kPageable) return;
      simulation.touch(*operation_, bytes.begin, bytes.count, bytes.writes);
    });
  }
}

void lend_memory(void* begin, int64_t bytes, const std::string& name) {
  with_simulation("lend_memory", [&](Simulation& simulation) {
    simulation.memory().add_pinned(begin, bytes, name);
  });
}

void take_back_memory(void* begin) {
  with_simulation("take_back_memory",
                  [&](Simulation& simulation) { simulation.memory().free_pinned(begin); });
}

void adopt_memory(cudaStream_t stream, void* begin, int64_t bytes, std::string name,
                  AdoptedValue value) {
  with_simulation("adopt_memory", [&](Simulation& simulation) {
    SimulatedStream& of = simulation.stream(stream);
    simulation.issue(of, "allocation", [=, &simulation](const Operation& operation) {
      ptx::DeviceMemory& memory = simulation.memory().of(operation.stream->device);
      memory.carve(begin, bytes, name);
      simulation.touch(operation, begin, bytes, true);
      if (value == AdoptedValue::kNone) memory.undefine(begin, bytes);
    });
  });
}

void forget_memory(cudaStream_t stream, int device, void* begin, int64_t bytes) {
  with_simulation("forget_memory", [&](Simulation& simulation) {
    SimulatedStream& of = simulation.stream(stream, device);
    simulation.issue(of, "release", [=, &simulation](const Operation& operation) {
      simulation.touch(operation, begin, bytes, true);
      simulation.memory().of(operation.stream->device).give_back(begin);
    });
  });
}

void note_freed(cudaStream_t stream, void* begin, int64_t bytes) {
  with_simulation("note_freed", [&](Simulation& simulation) {
    SimulatedStream& of = simulation.stream(stream);
    simulation.issue(of, "release", [=, &simulation](const Operation& operation) {
      simulation.touch(operation, begin, bytes, true);
      simulation.memory().of(operation.stream->device).undefine(begin, bytes);
    });
  });
}

}  // namespace fsdp::testing::sim
