#include "io/zip_directory.h"

#include <doctest/doctest.h>

#include "fsdp/error.h"
#include "support/zip_bytes.h"

namespace fsdp {
namespace {

std::string text_of(const ZipRecord* record) {
  if (record == nullptr) return "none";
  return {reinterpret_cast<const char*>(record->bytes.data()), record->bytes.size()};
}

std::string zip_refusal(const std::string& file) {
  try {
    const ZipDirectory directory = parse_zip(std::as_bytes(std::span(file)), "f");
    for (const auto& [name, record] : directory.records) check_record(record, name, "f");
  } catch (const IoError& error) {
    CHECK(error.code() == ExitCode::kCorruptData);
    CHECK(error.text().where == "f");
    CHECK(!error.text().hint.empty());
    return error.text().what + (error.text().cause.empty() ? "" : "; " + error.text().cause);
  }
  return "accepted";
}

std::string part_refusal(const ZipPart& part) {
  return zip_refusal(zip_of({{"a/first", "1"}, part}));
}

TEST_CASE("the check sum is that of zip archives, in one piece and in several") {
  const std::string digits = "123456789";
  const auto bytes = std::as_bytes(std::span(digits));
  CHECK(crc32(bytes) == 0xcbf43926);
  CHECK(crc32({}) == 0);
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    CHECK(crc32(bytes.subspan(cut), crc32(bytes.first(cut))) == 0xcbf43926);
  }
}

TEST_CASE("records are found by name in the first one's folder, whatever the archive's shape") {
  const std::vector<ZipPart> parts{{"a/data.pkl", "pickle"},
                                   {"a/data/0", std::string(100, 'x'), /*flags=*/0x808},
                                   {"b/data.pkl", "other"},
                                   {"a/empty", ""}};
  for (const ZipShape& shape :
       {ZipShape{}, ZipShape{.wide = true}, ZipShape{.comment = "PK and more"}}) {
    const std::string file = zip_of(parts, shape);
    const ZipDirectory directory = parse_zip(std::as_bytes(std::span(file)), "f");
    CHECK(directory.folder == "a");
    CHECK(directory.records.size() == 4);
    CHECK(text_of(directory.find("data.pkl")) == "pickle");
    CHECK(text_of(directory.find("data/0")) == std::string(100, 'x'));
    CHECK(text_of(directory.find("empty")).empty());
    CHECK(text_of(directory.find("DATA.pkl")) == "none");
    CHECK(zip_refusal(file) == "accepted");
  }
}

TEST_CASE("every flag of a record is honoured or refused by name") {
  CHECK(part_refusal({"a/r", "2", 1 << 3}) == "accepted");   // the sizes follow the bytes
  CHECK(part_refusal({"a/r", "2", 1 << 11}) == "accepted");  // the name is UTF-8
  CHECK(part_refusal({"a/r", "2", 1 << 0}) == "record 'a/r' is encrypted");
  CHECK(part_refusal({"a/r", "2", 1 << 6}) == "record 'a/r' is encrypted");
  CHECK(part_refusal({"a/r", "2", 1 << 5}) ==
        "record 'a/r' has flags 0x0020, which are not supported");
  CHECK(part_refusal({"a/r", "2", 1 << 14}) ==
        "record 'a/r' has flags 0x4000, which are not supported");
  CHECK(part_refusal({"a/r", "2", 0, /*method=*/8}) == "record 'a/r' is compressed");
}

TEST_CASE("a record that cannot be read is no harm to the others") {
  const std::string file =
      zip_of({{"a/code.py", "1"}, {"a/code.pyc", "2", 0, 8}, {"a/data/0", "3"}});
  const ZipDirectory directory = parse_zip(std::as_bytes(std::span(file)), "f");
  CHECK(text_of(directory.find("data/0")) == "3");
  CHECK(text_of(directory.find("code.pyc")).empty());
  CHECK(directory.find("code.pyc")->unread == "is compressed");
}

TEST_CASE("a record that is damaged, there twice or two things at once is refused by name") {
  CHECK(part_refusal({.name = "a/r", .bytes = "123456789", .check_sum = 7}) ==
        "record 'a/r' is damaged: its check sum is cbf43926, the archive says 00000007");
  CHECK(part_refusal({"a/first", "2"}) == "record 'a/first' appears twice");
  CHECK(part_refusal({"a/FIRST", "2"}) == "record 'a/FIRST' appears twice");
  CHECK(part_refusal({.name = "a/r", .bytes = "2", .said_name = "a/s"}) ==
        "record 'a/r' differs from its directory entry");
  CHECK(zip_refusal(zip_of({{"first", "1"}})) == "record 'first' is in no folder");
}

TEST_CASE("what is no whole archive is refused") {
  const std::string whole = zip_of({{"a/first", "1"}, {"a/second", "2"}});
  const std::string begins = "the file begins as a zip archive but is not a valid one; ";
  CHECK(zip_refusal(zip_of({})) == begins + "it has no records");
  CHECK(zip_refusal(whole + "x") == begins + "bytes follow its end");
  CHECK(zip_refusal(zip_of({{"a/r", "1"}}, {.disk = 1})) == begins + "it is one part of several");
  CHECK(zip_refusal("PK\x03\x04") == begins + "it is truncated");
  CHECK(zip_refusal(whole.substr(0, whole.size() - 1)) ==
        begins + "its directory, which is written last, is missing");
  for (size_t size = 0; size < whole.size(); ++size) {
    CAPTURE(size);
    CHECK(zip_refusal(whole.substr(0, size)) != "accepted");
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char value : {'\0', '\x01', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[at] = value;
      CHECK_NOTHROW(zip_refusal(changed));
    }
  }
}

}  // namespace
}  // namespace fsdp
