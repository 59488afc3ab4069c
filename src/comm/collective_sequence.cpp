#include "comm/collective_sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/job/collective_record.h"
#include "comm/job/fingerprint.h"
#include "fsdp/error.h"

namespace fsdp {
namespace {

thread_local std::string_view alone_inside;  // empty: no scope of Alone is open

[[noreturn]] void refuse_alone(Operation operation, std::string_view label) {
  throw StateError(
      {.what = fmt::format("{} '{}' cannot run inside {}", name_of(operation), label, alone_inside),
       .cause = "the ranks are threads and run this code one after another, so the other ranks "
                "cannot join the collective",
       .hint = "call the collective before or after this code, or start the ranks as processes "
               "(fsdp-run)"});
}

}  // namespace

CollectiveSequence::Alone::Alone(std::string_view inside) { alone_inside = inside; }
CollectiveSequence::Alone::~Alone() { alone_inside = {}; }

CollectiveTag CollectiveSequence::next(Operation operation, int64_t numel, std::string_view label) {
  if (among_threads_ && !alone_inside.empty()) refuse_alone(operation, label);
  const std::lock_guard lock(mutex_);
  note_length_ = 0;
  const CollectiveTag tag{
      .sequence = ++sequence_, .label = label, .note = std::exchange(note_, {})};
  // The observer is called under the lock, so that it receives the places in order.
  if (observer_) observer_(tag, operation, numel);
  return tag;
}

void CollectiveSequence::note(std::string_view text) {
  const std::lock_guard lock(mutex_);
  // 1 is added, so that an empty text changes the hash as well. Without it, the hash could stay 0
  // (mix(0, 0) is 0), and 0 means no annotation.
  note_.hash = mix_text(note_.hash + 1, text);
  // A long text is cut at the end, because an annotation starts with the action. (The label of a
  // record is cut at the beginning, because names of units differ at their ends.)
  const auto put = [this](std::string_view words) {
    const size_t room = note_.text.size() - 1 - note_length_;
    std::copy_n(words.data(), std::min(words.size(), room), note_.text.data() + note_length_);
    if (words.size() > room) mark_cut(note_.text);
    note_length_ += std::min(words.size(), room);
  };
  if (note_length_ > 0) put("; ");
  put(text);
}

void CollectiveSequence::observe(Observer observer) {
  const std::lock_guard lock(mutex_);
  observer_ = std::move(observer);
}

}  // namespace fsdp
