#include "terminal/console.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <utility>

#include "support/pseudo_terminal.h"

using namespace terminal;

namespace {

struct Pipe {
  Pipe() {
    REQUIRE(pipe(ends.data()) == 0);
    file = fdopen(ends[1], "w");
  }
  ~Pipe() {
    if (file != nullptr) std::fclose(file);
    close(ends[0]);
  }
  std::string read_all() {
    std::string text;
    std::array<char, 4096> block{};
    for (ssize_t got = 0; (got = read(ends[0], block.data(), block.size())) > 0;) {
      text.append(block.data(), got);
    }
    return text;
  }

  std::array<int, 2> ends{};
  std::FILE* file;
};

}  // namespace

TEST_CASE("who prints does not wait for a reader that pauses, and nothing is lost") {
  Pipe pipe;
  std::string expected;
  auto console = std::make_unique<Console>(pipe.file);
  for (int i = 0; i < 40'000; ++i) {  // far more than a pipe can buffer
    const std::string line = "line " + std::to_string(i) + '\n';
    console->print(line);
    expected += line;
  }
  CHECK(console->is_behind());
  std::string read;
  std::thread reader([&] { read = pipe.read_all(); });
  console.reset();  // returns when everything is written
  std::fclose(std::exchange(pipe.file, nullptr));
  reader.join();
  CHECK(read == expected);
}

TEST_CASE("what is ready takes text at once, after what is in the stream's buffer") {
  Pipe pipe;
  Console console(pipe.file);
  std::fputs("before ", pipe.file);
  console.print("now\n");
  CHECK_FALSE(console.is_behind());
  std::array<char, 64> block{};
  const ssize_t got = read(pipe.ends[0], block.data(), block.size());
  CHECK(std::string(block.data(), got) == "before now\n");
  CHECK_FALSE(console.is_terminal());
  CHECK(console.columns() == 0);
}

TEST_CASE("a stream that takes nothing any more costs the text alone") {
  std::FILE* full = std::fopen("/dev/full", "w");
  REQUIRE(full != nullptr);
  {
    Console console(full);
    console.print("lost\n");
    CHECK_FALSE(console.is_behind());
  }
  std::fclose(full);
  Console(nullptr).print("nobody reads this");
}

TEST_CASE("a terminal says how wide it is now") {
  const fsdp::testing::PseudoTerminal terminal(40);
  std::FILE* file = fdopen(dup(terminal.slave()), "w");
  {
    const Console console(file);
    CHECK(console.is_terminal());
    CHECK(console.columns() == 40);
    terminal.set_columns(120);
    CHECK(console.columns() == 120);
  }
  std::fclose(file);
}
