#include "planner/time/virtual_clock.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp/error.h"

namespace fsdp {

int VirtualClock::add_stream(bool is_inline, bool is_compute) {
  queues_.push_back({.is_inline = is_inline, .is_compute = is_compute});
  return static_cast<int>(queues_.size()) - 1;
}

void VirtualClock::add(int stream, Item item) {
  item.not_before = host_ns_;
  queues_[static_cast<size_t>(stream)].items.push_back(std::move(item));
}

void VirtualClock::issue(int stream, const TimedWork& work) {
  add(stream, {.work = work});
  if (queues_[static_cast<size_t>(stream)].is_inline) wait_on_host(*mark(stream));
}

std::shared_ptr<TimedMark> VirtualClock::mark(int stream) {
  auto mark = std::make_shared<TimedMark>(TimedMark{.stream = stream});
  add(stream, {.mark = mark});
  return mark;
}

void VirtualClock::wait(int stream, std::shared_ptr<TimedMark> mark, const CodePlace& place) {
  if (mark == nullptr || (keeps_ && !keeps_(place))) return;
  add(stream, {.wait = std::move(mark)});
  if (queues_[static_cast<size_t>(stream)].is_inline) wait_on_host(*this->mark(stream));
}

void VirtualClock::tell(int stream, std::function<void(double ns)> tell) {
  add(stream, {.tell = std::move(tell)});
  if (queues_[static_cast<size_t>(stream)].is_inline) wait_on_host(*mark(stream));
}

// Later work begins at the host's time or later, so time may advance to the mark, but not further.
void VirtualClock::wait_on_host(const TimedMark& mark) {
  run_until(mark);
  host_ns_ = std::max(host_ns_, mark.at_ns);
}

void VirtualClock::run_until(const TimedMark& mark) {
  for (pass_due_items(); !mark.reached; pass_due_items()) {
    if (!advance()) {
      throw StateError({.what = "a stream waits for work that was not issued",
                        .where = "the virtual time of a plan"});
    }
  }
}

void VirtualClock::run() {
  do {
    pass_due_items();
  } while (advance());
}

void VirtualClock::pass_due_items() {
  for (bool passed = true; passed;) {
    passed = false;
    for (Queue& queue : queues_) {
      while (passes(queue)) passed = true;
    }
  }
}

bool VirtualClock::passes(Queue& queue) {
  queue.is_working = false;
  if (queue.items.empty() || queue.items.front().not_before > now_ns_) return false;
  Item& item = queue.items.front();
  if (item.wait && !item.wait->reached) return false;
  if (item.work.ns > 0) {
    queue.is_working = true;
    return false;
  }
  if (item.mark) {
    item.mark->reached = true;
    item.mark->at_ns = now_ns_;
  }
  if (item.tell) item.tell(now_ns_);
  queue.items.pop_front();
  return true;
}

VirtualClock::Load VirtualClock::load() const {
  Load load;
  double cores = 0;
  for (const Queue& queue : queues_) {
    if (!queue.is_working) continue;
    const TimedWork& work = queue.items.front().work;
    load.on_wire += work.on_wire ? 1 : 0;
    load.collectives += work.collective ? 1 : 0;
    cores += work.cores;
  }
  if (cores_ > 0) load.crowding = std::max(1.0, cores / cores_);
  return load;
}

// Work that uses less than a core is slowed only in the part of its time in which it uses one.
double VirtualClock::rate_of(const Queue& queue, const Load& load) const {
  const TimedWork& work = queue.items.front().work;
  if (work.on_wire) return 1.0 / load.on_wire;
  const double computing = std::min(work.cores, 1.0);
  const double shared = 1 / (1 - computing + computing * load.crowding);
  return queue.is_compute && !work.collective && load.collectives > 0 ? shared / slowdown_ : shared;
}

bool VirtualClock::advance() {
  const Load load = this->load();
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double next = kNever;
  for (const Queue& queue : queues_) {
    if (queue.items.empty()) continue;
    const Item& item = queue.items.front();
    if (queue.is_working) {
      next = std::min(next, item.work.ns / rate_of(queue, load));
    } else if (item.not_before > now_ns_) {
      next = std::min(next, item.not_before - now_ns_);
    }
  }
  if (next == kNever) return false;
  seen_[static_cast<size_t>(kind_now())] += next;
  for (Queue& queue : queues_) {
    if (!queue.is_working) continue;
    TimedWork& work = queue.items.front().work;
    const double rate = rate_of(queue, load);
    busy_[static_cast<size_t>(work.kind)] += next;
    // The work that ends next ends exactly, without a rounding error that remains.
    work.ns = work.ns / rate <= next ? 0 : work.ns - next * rate;
  }
  const double begin = now_ns_;
  now_ns_ += next;
  for (const Queue& queue : queues_) {  // a sum may be rounded to less than its target
    if (queue.items.empty() || queue.is_working) continue;
    const double due = queue.items.front().not_before;
    if (due > begin && due - begin <= next) now_ns_ = std::max(now_ns_, due);
  }
  return true;
}

// Returns the kind of the work that the compute stream runs now or waits for.
TimedKind VirtualClock::kind_now() const {
  for (const Queue& queue : queues_) {
    if (!queue.is_compute) continue;
    if (const TimedKind kind = kind_of(queue, 0); kind != TimedKind::kHost) return kind;
  }
  // The rank's thread may run work of another inline stream.
  for (const Queue& queue : queues_) {
    if (queue.is_inline && queue.is_working) return queue.items.front().work.kind;
  }
  return TimedKind::kHost;
}

TimedKind VirtualClock::kind_of(const Queue& queue, int depth) const {
  if (queue.items.empty() || depth > static_cast<int>(queues_.size())) return TimedKind::kHost;
  const Item& item = queue.items.front();
  if (queue.is_working) return item.work.kind;
  if (!item.wait || item.not_before > now_ns_) return TimedKind::kHost;
  return kind_of(queues_[static_cast<size_t>(item.wait->stream)], depth + 1);
}

}  // namespace fsdp
