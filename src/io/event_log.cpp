// Encodes TensorBoard's records. A record is TFRecord's: the length, its check sum, an Event
// (tensorflow/core/util/event.proto) in protobuf's encoding, and its check sum.
#include "fsdp/event_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <span>
#include <system_error>
#include <utility>

#include "io/crc32.h"
#include "io/file_failure.h"

namespace fsdp {
namespace {

constexpr std::string_view kFilePrefix = "events.out.tfevents.";

// Field numbers of event.proto and summary.proto.
namespace event {
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr int kValue = 1, kTag = 1, kSimpleValue = 2;
}
namespace session_log {
constexpr int kStatus = 1;
constexpr uint64_t kStart = 1;
}  // namespace session_log

enum Wire : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// Appends the bytes of a number. All supported hosts are little-endian, like the format.
template <class Number>
void append_fixed(std::string& out, Number number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  out.append(bytes, sizeof number);
}

void append_varint(std::string& out, uint64_t number) {
  for (; number >= 0x80; number >>= 7) out += static_cast<char>(number | 0x80);
  out += static_cast<char>(number);
}

void append_key(std::string& out, int field, Wire wire) {
  append_varint(out, static_cast<uint64_t>(field) << 3 | wire);
}

void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string begin_event(int64_t step) {
  std::string out;
  append_key(out, event::kWallTime, kFixed64);
  append_fixed(out, wall_time());
  append_key(out, event::kStep, kVarint);
  append_varint(out, static_cast<uint64_t>(step));
  return out;
}

uint32_t masked_sum(std::string_view bytes) {
  constexpr uint32_t kMaskDelta = 0xa282ead8U;
  return std::rotr(crc32c(std::as_bytes(std::span(bytes))), 15) + kMaskDelta;
}

std::string record_of(std::string_view event) {
  std::string record;
  append_fixed(record, static_cast<uint64_t>(event.size()));
  append_fixed(record, masked_sum(record));
  record += event;
  append_fixed(record, masked_sum(event));
  return record;
}

// Returns the seconds for the name of a new file. TensorBoard reads the files of a folder in the
// order of their names, so the seconds are larger than those of all existing files, even if another
// host's clock is ahead.
int64_t seconds_of_new_file(const std::filesystem::path& folder) {
  auto seconds = static_cast<int64_t>(wall_time());
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (!name.starts_with(kFilePrefix)) continue;
    int64_t of_file = 0;
    std::from_chars(name.data() + kFilePrefix.size(), name.data() + name.size(), of_file);
    seconds = std::max(seconds, of_file + 1);
  }
  return seconds;
}

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace

EventLog::EventLog(const std::filesystem::path& folder, int64_t done) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    cannot_create(folder, error.value(), "cannot create the folder of TensorBoard's files");
  const std::string name = fmt::format("{}{:010}.{}.{}.", kFilePrefix, seconds_of_new_file(folder),
                                       host_name(), ::getpid());
  for (int number = 0; file_ < 0; ++number) {
    path_ = folder / (name + std::to_string(number));
    file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (file_ < 0 && errno != EEXIST) cannot_create(path_, errno);
  }
  try {
    std::string version = begin_event(done);
    append_bytes(version, event::kFileVersion, "brain.Event:2");
    append(version);
    // At the START of a session, TensorBoard drops everything from this step on.
    std::string start = begin_event(done + 1), status;
    append_key(status, session_log::kStatus, kVarint);
    append_varint(status, session_log::kStart);
    append_bytes(start, event::kSessionLog, status);
    append(start);
  } catch (...) {
    ::close(file_);
    throw;
  }
}

EventLog::~EventLog() { ::close(file_); }

void EventLog::scalar(std::string_view tag, int64_t step, double value) {
  std::string one;
  append_bytes(one, summary::kTag, tag);
  append_key(one, summary::kSimpleValue, kFixed32);
  append_fixed(one, static_cast<float>(value));
  std::string values, out = begin_event(step);
  append_bytes(values, summary::kValue, one);
  append_bytes(out, event::kSummary, values);
  append(out);
}

void EventLog::append(const std::string& event) {
  const std::string record = record_of(event);
  for (std::string_view rest = record; !rest.empty();) {
    const ssize_t written = ::write(file_, rest.data(), rest.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      // Remove the partial record: TensorBoard would wait for its end.
      [[maybe_unused]] const int cut = ::ftruncate(file_, bytes_);
      fail_file(ExitCode::kIoError, "cannot write TensorBoard's file", path_.string(), error);
    }
    rest.remove_prefix(static_cast<size_t>(written));
  }
  bytes_ += std::ssize(record);
}

}  // namespace fsdp
