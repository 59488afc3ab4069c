#include "fsdp/event_log.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "fsdp/error.h"
#include "io/crc32.h"
#include "support/file_size_limit.h"
#include "support/scratch_folder.h"

namespace fsdp {
namespace {

uint32_t crc32c_of(std::string_view text) { return crc32c(std::as_bytes(std::span(text))); }

template <class Number>
Number number_at(std::string_view bytes, size_t at) {
  Number number{};
  REQUIRE(at + sizeof number <= bytes.size());
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

// Returns the payloads of a file of records. Checks every check sum. Every record must be complete.
std::vector<std::string> payloads_of(const std::string& file) {
  const auto unmasked = [](uint32_t sum) { return std::rotl(sum - 0xa282ead8U, 15); };
  std::vector<std::string> payloads;
  for (size_t at = 0; at < file.size();) {
    const auto size = number_at<uint64_t>(file, at);
    CHECK(unmasked(number_at<uint32_t>(file, at + 8)) == crc32c_of(file.substr(at, 8)));
    REQUIRE(at + 16 + size <= file.size());
    payloads.push_back(file.substr(at + 12, size));
    CHECK(unmasked(number_at<uint32_t>(file, at + 12 + size)) == crc32c_of(payloads.back()));
    at += 16 + size;
  }
  return payloads;
}

// Returns an Event without its first field, the time.
std::string without_time(const std::string& event) {
  REQUIRE(event.size() > 9);
  CHECK(event[0] == '\x09');
  CHECK(number_at<double>(event, 1) > 1.7e9);
  return event.substr(9);
}

using namespace std::string_literals;

TEST_CASE("CRC-32C of the vectors of RFC 3720") {
  CHECK(crc32c_of("123456789") == 0xe3069283U);
  CHECK(crc32c_of("") == 0);
  CHECK(crc32c_of(std::string(32, '\0')) == 0x8a9136aaU);
  CHECK(crc32c_of(std::string(32, '\xff')) == 0x62a8ab43U);
  std::string rising(32, '\0');
  for (int i = 0; i < 32; ++i) rising[i] = static_cast<char>(i);
  CHECK(crc32c_of(rising) == 0x46dd794eU);
  CHECK(crc32c(std::as_bytes(std::span("456789", 6)), crc32c_of("123")) == 0xe3069283U);
}

TEST_CASE("an event file has the version, the start of the session, then the scalars") {
  const ScratchFolder folder;
  EventLog log(folder / "new/runs", /*done=*/299);
  log.scalar("train/loss", 300, 0.5);
  log.scalar("x", int64_t{1} << 40, std::numeric_limits<double>::quiet_NaN());
  const std::string name = log.file().filename();
  CHECK(name.starts_with("events.out.tfevents."));
  CHECK(name.ends_with("." + std::to_string(::getpid()) + ".0"));
  const std::vector<std::string> events = payloads_of(read_whole(log.file()));
  REQUIRE(events.size() == 4);
  CHECK(without_time(events[0]) ==
        "\x10\xab\x02\x1a\x0d"
        "brain.Event:2");
  CHECK(without_time(events[1]) == "\x10\xac\x02\x3a\x02\x08\x01");
  CHECK(without_time(events[2]) ==
        "\x10\xac\x02\x2a\x13\x0a\x11\x0a\x0a"
        "train/loss"
        "\x15\0\0\0\x3f"s);
  const std::string third = without_time(events[3]);
  CHECK(third.starts_with("\x10\x80\x80\x80\x80\x80\x20\x2a\x0a\x0a\x08\x0a\x01x\x15"));
  CHECK(std::isnan(number_at<float>(third, third.size() - 4)));
}

TEST_CASE("a later log of a folder sorts after the earlier files, and leaves a torn record alone") {
  const ScratchFolder folder;
  const std::string torn = "\x18\0\0\0"s;
  std::string last = "events.out.tfevents.4102444800.host.1.0";  // of a clock that is ahead
  folder.write(last, torn);
  for (int64_t done = 0; done < 3; ++done) {
    const EventLog log(folder.path(), done);
    CHECK(last < log.file().filename());
    last = log.file().filename();
    CHECK(payloads_of(read_whole(log.file())).size() == 2);
  }
  CHECK(folder.names().size() == 4);
  CHECK(read_whole(folder / folder.names().front()) == torn);
}

TEST_CASE("a record that cannot be written is removed, and the error names the file") {
  const ScratchFolder folder;
  EventLog log(folder.path());
  log.scalar("a", 1, 1.0);
  const std::string before = read_whole(log.file());
  {
    const FileSizeLimit limit(before.size() + 10);
    try {
      log.scalar("a", 2, 2.0);
      FAIL("the record was written");
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kIoError);
      CHECK(std::string(error.what()).find(log.file().string()) != std::string::npos);
    }
  }
  CHECK(read_whole(log.file()) == before);
  log.scalar("a", 3, 3.0);
  CHECK(payloads_of(read_whole(log.file())).size() == 4);
}

TEST_CASE("a folder that cannot be created is an error with code 73") {
  const ScratchFolder folder;
  folder.write("file", "x");
  for (const char* name : {"file", "file/runs"}) {
    try {
      const EventLog log(folder / name);
      FAIL("a log was created");
    } catch (const IoError& error) {
      CHECK(error.code() == ExitCode::kCannotCreate);
      CHECK(std::string(error.what()).find((folder / name).string()) != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace fsdp
