#include "fsdp/error.h"

#include <doctest/doctest.h>

#include <stdexcept>

namespace fsdp {
namespace {

TEST_CASE("the text of an error names what, where, cause and hint, and leaves out what is empty") {
  CHECK(std::string(StateError({.what = "a call came twice"}).what()) == "a call came twice");
  const IoError full(ExitCode::kCorruptData, {.what = "header too long: expected 8, got 9 bytes",
                                              .where = "model.safetensors, byte 8",
                                              .cause = "the file was cut",
                                              .hint = "download it again"});
  CHECK(std::string(full.what()) ==
        "header too long: expected 8, got 9 bytes (model.safetensors, byte 8); the file was cut; "
        "hint: download it again");
  CHECK(full.text().hint == "download it again");
}

TEST_CASE("each kind of error has the exit code of its case") {
  CHECK(InvalidArgument({.what = "x"}).exit_code() == 78);
  CHECK(InvalidArgument({.what = "x"}, ExitCode::kUsage).exit_code() == 64);
  CHECK(StateError({.what = "x"}).exit_code() == 70);
  CHECK(DeviceError({.what = "x"}).exit_code() == 70);
  CHECK(CommError({.what = "x"}).exit_code() == 75);
  CHECK(CommError({.what = "x"}, ExitCode::kConfiguration).exit_code() == 78);
  CHECK(IoError(ExitCode::kCannotCreate, {.what = "x"}).exit_code() == 73);
  CHECK(exit_code_of(IoError(ExitCode::kIoError, {.what = "x"})) == ExitCode::kIoError);
  CHECK(exit_code_of(std::bad_alloc()) == ExitCode::kInternal);
}

TEST_CASE("the error line names code, rank, host and step") {
  const CommError error({.what = "rank 1 died"});
  CHECK(error_line(error, {.rank = 0, .world_size = 4, .host = "a", .step = 12}) ==
        "fsdp: error[75] rank 0/4 host a step 12: rank 1 died");
}

TEST_CASE("the error line leaves the step out before the first one") {
  const CommError error({.what = "rank 1 died"});
  CHECK(error_line(error, {.rank = 3, .world_size = 4, .host = "b"}) ==
        "fsdp: error[75] rank 3/4 host b: rank 1 died");
  CHECK(error_line(error, {.rank = 3, .world_size = 4, .host = "b", .step = 0}) ==
        "fsdp: error[75] rank 3/4 host b step 0: rank 1 died");
}

TEST_CASE("the error line stays one line whatever the text holds") {
  const StateError error({.what = "a\nb\tc\x1b[31m\r\x7f", .where = "d\n"});
  CHECK(error_line(error, {.rank = 0, .world_size = 1, .host = "h"}) ==
        "fsdp: error[70] rank 0/1 host h: a\\nb\\x09c\\x1b[31m\\x0d\\x7f (d\\n)");
  // Some terminals treat U+009B as the start of a control sequence.
  CHECK(error_line(StateError({.what = "é\u009b31m\xff"}), {.host = "h"}) ==
        "fsdp: error[70] rank 0/1 host h: é\\xc2\\x9b31m\\xff");
}

TEST_CASE("a warning has the same form without a code") {
  CHECK(warning_line({.what = "rank 1 is slow", .where = "norm #7", .cause = "c", .hint = "h"},
                     {.rank = 0, .world_size = 4, .host = "a"}) ==
        "fsdp: warning rank 0/4 host a: rank 1 is slow (norm #7); c; hint: h");
}

TEST_CASE("an exception of another library gets code 70, and ours keeps its own") {
  const std::runtime_error foreign("vector::_M_range_check");
  const ErrorPlace place{.rank = 1, .world_size = 2, .host = "h"};
  CHECK(error_line(foreign, place) == "fsdp: error[70] rank 1/2 host h: vector::_M_range_check");
  const InvalidArgument ours({.what = "x"});
  const std::exception& as_base = ours;
  CHECK(error_line(as_base, place) == "fsdp: error[78] rank 1/2 host h: x");
}

TEST_CASE("of an exception of LibTorch the line holds the message, without the stack") {
  const ErrorPlace place{.rank = 0, .world_size = 1, .host = "h"};
  const std::runtime_error torch(
      "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)\n"
      "Exception raised from meta at LinearAlgebra.cpp:201 (most recent call first):\n"
      "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f1 in libc10.so)\n"
      "frame #1: <unknown function> + 0x2\n");
  CHECK(error_line(torch, place) ==
        "fsdp: error[70] rank 0/1 host h: "
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  CHECK(message_of(torch) == "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  const std::runtime_error enforced(
      "[enforce fail at alloc_cpu.cpp:127] can't allocate memory\nframe #0: "
      "c10::ThrowEnforceNotMet");
  CHECK(message_of(enforced) == "[enforce fail at alloc_cpu.cpp:127] can't allocate memory");
  const std::runtime_error two_lines("first\nsecond\nException raised from f\nframe #0");
  CHECK(error_line(two_lines, place) == "fsdp: error[70] rank 0/1 host h: first\\nsecond");
}

TEST_CASE("words of LibTorch's marker inside a message do not cut it") {
  const std::runtime_error quoting("log says: Exception raised from f\nbut goes on");
  CHECK(message_of(quoting) == "log says: Exception raised from f\nbut goes on");
  CHECK(message_of(std::runtime_error("")).empty());
}

}  // namespace
}  // namespace fsdp
