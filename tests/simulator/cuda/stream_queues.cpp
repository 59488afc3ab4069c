#include "simulator/cuda/stream_queues.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace fsdp::testing::sim {

SimulatedStream& StreamQueues::add(int device) {
  auto stream = std::make_unique<SimulatedStream>();
  stream->number = static_cast<int>(streams_.size());
  stream->device = device;
  stream->name = fmt::format("stream {}", stream->number);
  streams_.push_back(std::move(stream));
  return *streams_.back();
}

SimulatedStream* StreamQueues::find(const void* handle) const {
  for (const auto& stream : streams_) {
    if (stream.get() == handle) return stream.get();
  }
  return nullptr;
}

SimulatedStream& StreamQueues::first_in_queue(SimulatedStream& stream) const {
  SimulatedStream* first = &stream;
  if (schedule_ != Schedule::kOneQueue) return *first;
  for (const auto& each : streams_) {
    if (each->device != stream.device || each->queue.empty()) continue;
    if (each->queue.front().number < first->queue.front().number) first = each.get();
  }
  return *first;
}

bool StreamQueues::may_run(const SimulatedStream& stream) const {
  if (stream.queue.empty()) return false;
  const Work& head = stream.queue.front();
  return !head.after || head.after->reached;
}

// The work is removed from the queue before it runs, because it may inspect the queue.
void StreamQueues::run_head(SimulatedStream& stream) {
  const Work work = std::move(stream.queue.front());
  stream.queue.pop_front();
  stream.now_ns = std::max(stream.now_ns, work.issued_ns);
  if (work.after) stream.now_ns = std::max(stream.now_ns, work.after->at_ns);
  if (work.run) work.run();
}

bool StreamQueues::run_one() {
  std::vector<SimulatedStream*> ready;
  for (const auto& stream : streams_) {
    if (!may_run(*stream) || &first_in_queue(*stream) != stream.get()) continue;
    ready.push_back(stream.get());
  }
  if (ready.empty()) return false;
  run_head(*ready[random_() % ready.size()]);
  return true;
}

void StreamQueues::run_some() {
  if (schedule_ == Schedule::kLate) return;
  if (schedule_ == Schedule::kEager) {
    while (run_one()) continue;
    return;
  }
  for (uint32_t left = random_() % 3; left > 0 && run_one(); --left) continue;
}

// A point is issued before every wait for it. So the search ends at work that may run, or at a held
// point. The parts of a held point were issued at different times and may wait for each other, so a
// stream that was already visited is not searched again.
bool StreamQueues::advance(SimulatedStream& stream) {
  if (stream.queue.empty()) return true;
  std::set<int> on_the_way;
  return advance(stream, on_the_way);
}

bool StreamQueues::advance(SimulatedStream& stream, std::set<int>& on_the_way) {
  if (SimulatedStream& first = first_in_queue(stream); &first != &stream) {
    return advance(first, on_the_way);
  }
  if (may_run(stream)) {
    run_head(stream);
    return true;
  }
  if (!on_the_way.insert(stream.number).second) return false;
  const auto of = [this](const Point& point) -> SimulatedStream& {
    return *streams_[static_cast<size_t>(point.stream)];
  };
  const Point& after = *stream.queue.front().after;
  if (!after.held) return advance(of(after), on_the_way);
  return std::ranges::any_of(after.parts, [&](const std::shared_ptr<const Point>& part) {
    return !part->reached && advance(of(*part), on_the_way);
  });
}

void StreamQueues::advance_to(const Point& point) {
  if (!point.reached) advance(*streams_[static_cast<size_t>(point.stream)]);
}

bool StreamQueues::finish(SimulatedStream& stream) {
  while (!stream.queue.empty()) {
    // A random schedule also runs work of other streams meanwhile, as a device does.
    const bool has_run = draws() && run_one();
    if (!has_run && !advance(stream)) return false;
  }
  return true;
}

bool StreamQueues::reach(const Point& point) {
  SimulatedStream& stream = *streams_[static_cast<size_t>(point.stream)];
  while (!point.reached) {
    const bool has_run = draws() && run_one();
    if (!has_run && !advance(stream)) return false;
  }
  return true;
}

bool StreamQueues::finish_device(int device) {
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i]->device == device && !finish(*streams_[i])) return false;
  }
  return true;
}

}  // namespace fsdp::testing::sim
