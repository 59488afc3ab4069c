// Runs the program fsdp-inspect as a user does.
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/model_files.h"
#include "support/safetensors_bytes.h"
#include "support/sanitizers.h"
#include "support/scratch_folder.h"
#include "support/source_tree.h"

namespace fsdp {
namespace {

struct Ending {
  int code = -1;
  std::string out, err;
};

std::filesystem::path program() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fsdp-inspect";
}

// Not under sanitizers, because their own memory is many times that of the program.
constexpr bool kMemoryIsLimited = !kSanitized;

// `memory_bytes` is the limit of the program's allocations. Mapped files do not count. 0 means no
// limit.
Ending run(const std::vector<std::string>& arguments, rlim_t memory_bytes = 0) {
  const ScratchFolder folder;
  const std::string out = folder / "out", err = folder / "err", name = program();
  std::vector<char*> argv{const_cast<char*>(name.c_str())};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(::open(out.c_str(), O_WRONLY | O_CREAT, 0600), STDOUT_FILENO);
    ::dup2(::open(err.c_str(), O_WRONLY | O_CREAT, 0600), STDERR_FILENO);
    const rlimit limit{.rlim_cur = memory_bytes, .rlim_max = memory_bytes};
    if (kMemoryIsLimited && memory_bytes > 0) ::setrlimit(RLIMIT_DATA, &limit);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return {.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status),
          .out = read_whole(out),
          .err = read_whole(err)};
}

bool is_built() {
  if (std::filesystem::exists(program())) return true;
  MESSAGE("skipped: fsdp-inspect was not built beside the tests");
  return false;
}

// Checks that the program returns this exit code and prints exactly one line, which has this text.
void check_refused(const std::vector<std::string>& arguments, int code, const std::string& text) {
  const Ending ending = run(arguments);
  CAPTURE(ending.err);
  CHECK(ending.code == code);
  CHECK(ending.err.find(text) != std::string::npos);
  CHECK(ending.err.starts_with("fsdp: error[" + std::to_string(code) + "] rank 0/1 host "));
  CHECK(ending.err.find('\n') == ending.err.size() - 1);
  CHECK(ending.out.empty());
}

TEST_CASE("fsdp-inspect lists a file in aligned columns with its totals") {
  if (!is_built()) return;
  const ScratchFolder folder;
  const auto path = folder / "m.safetensors";
  write_zeros(path, {{"encoder.weight", StoredDType::kF32, {1000, 3}},
                     {"é", StoredDType::kBF16, {}},
                     {"esc\x1b[31m", StoredDType::kBool, {0, 7}},
                     {"f8", StoredDType::kF8E4M3Fnuz, {5}}});
  const Ending ending = run({path});
  CHECK(ending.code == 0);
  CHECK(ending.err.empty());
  CHECK(ending.out == path.string() +
                          "\n"
                          "metadata format = 'pt'\n"
                          "name            dtype        shape       bytes\n"
                          "encoder.weight  F32          [1000, 3]  12,000\n"
                          "é               BF16         []              2\n"
                          "f8              F8_E4M3FNUZ  [5]             5\n"
                          "esc\\x1b[31m     BOOL         [0, 7]          0\n"
                          "4 tensors, 3,006 elements, 12,007 bytes (11.7 KiB): F32 1, BF16 1, "
                          "F8_E4M3FNUZ 1, BOOL 1\n");
}

TEST_CASE("fsdp-inspect lists a model folder with its configuration and notes") {
  if (!is_built()) return;
  const Ending record = run({source_file("examples/bert_qa/tests/records/bert_small")});
  CHECK(record.code == 0);
  CHECK(record.out.starts_with("bert: 2 layers, hidden size 48, "));

  const ScratchFolder folder;
  write_zeros(folder / "a.safetensors", small_tensors({"x"}));
  write_zeros(folder / "b.safetensors", small_tensors({"y", "z"}));
  folder.write("model.safetensors.index.json",
               R"({"metadata":{"total_size":1},"weight_map":)"
               R"({"x":"a.safetensors","y":"b.safetensors","z":"b.safetensors"}})");
  folder.write("config.json", R"({"model_type": "lla\nma", "hidden_size": 64})");
  const Ending ending = run({folder.path()});
  CHECK(ending.code == 0);
  CHECK(ending.out.starts_with("lla\\x0ama: hidden size 64\n"));
  CHECK(ending.out.find("note: model.safetensors.index.json says 1 bytes in all, but the shards "
                        "hold 24 bytes\n") != std::string::npos);
  CHECK(ending.out.ends_with("\nin 2 files: 3 tensors, 6 elements, 24 bytes\n"));
}

TEST_CASE("fsdp-inspect lists what torch.save wrote, and compares its check sums") {
  if (!is_built()) return;
  const std::filesystem::path path = source_file("tests/checkpoint/records/state_dict.pt");
  const Ending ending = run({path});
  CHECK(ending.code == 0);
  CHECK(ending.out.starts_with(path.string() + "\nname "));
  CHECK(ending.out.find("\nbody.transposed   F32    [4, 3]     48\n") != std::string::npos);
  const Ending script = run({source_file("tests/checkpoint/records/imagenet.pt")});
  CHECK(script.out.starts_with("note: "));
  CHECK(script.out.find("the weights are in its entry 'state_dict'") != std::string::npos);
  const ScratchFolder folder;
  std::string changed = read_whole(path);
  changed[changed.find(std::string("\x00\x00\x40\xc0", 4))] = 1;
  check_refused({folder.write("m.pt", changed)}, 65, "is damaged: its check sum is");
  CHECK(run({folder.path() / "m.pt", "--summary"}).code == 0);
}

TEST_CASE("fsdp-inspect --summary says totals by type and by what names begin with") {
  if (!is_built()) return;
  const ScratchFolder folder;
  const auto path = folder / "m.safetensors";
  write_zeros(path, {{"module.encoder.0.weight", StoredDType::kF32, {100, 3}},
                     {"module.encoder.1.weight", StoredDType::kBF16, {100, 3}},
                     {"module.head", StoredDType::kF32, {2}}});
  const Ending ending = run({"--summary", path});
  CHECK(ending.code == 0);
  CHECK(ending.out ==
        path.string() + ": a safetensors file, " +
            std::to_string(std::filesystem::file_size(path)) +
            " bytes\n"
            "metadata format = 'pt'\n"
            "3 tensors, 602 elements, 1,808 bytes (1.8 KiB)\n"
            "by type   F32   2 tensors, 302 elements, 1,208 bytes (1.2 KiB)\n"
            "          BF16  1 tensor, 300 elements, 600 bytes\n"
            "all names begin with 'module.'\n"
            "by name   module.encoder.  2 tensors, 600 elements, 1,800 bytes (1.8 KiB)\n"
            "          module.head      1 tensor, 2 elements, 8 bytes\n");
  const Ending archive = run({"--summary", source_file("tests/checkpoint/records/state_dict.pt")});
  CHECK(archive.out.find(": a file of torch.save, 4085 bytes\n11 tensors, ") != std::string::npos);
}

TEST_CASE("fsdp-inspect says of any other file what it is") {
  if (!is_built()) return;
  const ScratchFolder folder;
  const auto said = [&](const std::string& name, const std::string& bytes) {
    const std::filesystem::path path = folder.write(name, bytes);
    const Ending ending = run({"--summary", path});
    CHECK(ending.code == 0);
    CHECK(ending.out == run({path}).out);
    REQUIRE(ending.out.starts_with(path.string() + ": "));
    return ending.out.substr(path.string().size() + 2);
  };
  CHECK(said("f", "\x1f\x8b\x08") == "a gzip archive, 3 bytes\n");
  CHECK(said("f", "hello\n") == "text, 6 bytes\n");
  CHECK(said("f", "{}") == "JSON, 2 bytes\n");
  CHECK(said("config.json", R"({"model_type":"bert"})") == "a configuration, bert, 21 bytes\n");
  CHECK(said("x.index.json", R"({"weight_map":{"a":"b","c":"b"}})") ==
        "an index of 2 tensors in 1 file, 32 bytes\n");
  CHECK(said("f", "\x80\x02}q") ==
        "a plain pickle, as torch.save wrote before PyTorch 1.6, 4 bytes\n");
  CHECK(said("f",
             "\x7f"
             "ELF") == "a program (ELF), 4 bytes\n");
  check_refused({folder.write("f", "PK\x05\x06" + std::string(18, '\0'))}, 65, "it has no records");
  check_refused({folder.write("f", std::string(20, '\x01'))}, 65, "a file of unknown kind");
}

TEST_CASE("fsdp-inspect refuses what is malformed with code 65 and one line") {
  if (!is_built()) return;
  const ScratchFolder folder;
  check_refused({folder.write("f", file_of("{}", 3))}, 65, "3 bytes follow the last tensor");
  check_refused({folder.write("f", file_of("{\"a\nb\x1b\":1}"))}, 65, "broken JSON");
  check_refused({folder.write("f", "")}, 65, "a file of 0 bytes");
  folder.write("model.safetensors", file_of("{}"));
  folder.write("config.json", "{\n\"model_type\": \"bert\",\n}");
  check_refused({folder.path()}, 65, "config.json, line 3, byte 24");
}

TEST_CASE("fsdp-inspect says what it cannot read with 74, and wrong usage with 64") {
  if (!is_built()) return;
  const ScratchFolder folder;
  check_refused({folder / "missing"}, 74, "No such file or directory; hint: check the path");
  check_refused({folder.path()}, 74, "neither model.safetensors nor");
  check_refused({"/dev/null"}, 74, "it is not a regular file");
  write_zeros(folder / "model.safetensors", small_tensors({"x"}));
  check_refused({folder.path()}, 74, "config.json); No such file or directory");
  check_refused({}, 64, "PATH is required (command line); hint: see fsdp-inspect --help");
  check_refused({"a", "b"}, 64, "not expected: b");
  check_refused({"--frobnicate", "a"}, 64, "--frobnicate");
  check_refused({""}, 64, "the argument PATH is empty");
  const Ending help = run({"--help"});
  CHECK(help.code == 0);
  CHECK(help.out.find("fsdp-inspect [OPTIONS] PATH") != std::string::npos);
}

TEST_CASE("A hostile header costs no more than the names that it holds and 16 MiB") {
  if (!is_built()) return;
  constexpr size_t kSize = 20'000'000;
  constexpr rlim_t kLimit = 16 << 20;
  const ScratchFolder folder;
  const auto repeated = [](const std::string& part, size_t size) {
    std::string text;
    while (text.size() < size) text += part;
    return text;
  };
  std::string tensors = "{", names = "{";
  for (int i = 0; tensors.size() < kSize; ++i) {
    tensors +=
        "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0,0,0],"data_offsets":[0,0]},)";
  }
  for (int i = 0; names.size() < kSize; ++i) {
    names += "\"" + std::string(2'000'000, 'n') + std::to_string(i) +
             R"(":{"dtype":"U8","shape":[],"data_offsets":[0,1]},)";
  }
  struct Case {
    std::string name, file;
    rlim_t names_bytes = 0;
  };
  const Case cases[] = {
      {"a claim without bytes", little_endian(100'000'000) + "{}"},
      {"nested arrays", file_of(R"({"a":{"shape":)" + std::string(kSize, '[') + "}}")},
      {"a long name", file_of("{\"" + std::string(kSize, 'n') + "\":1}")},
      {"a long number", file_of("{\"a\":" + std::string(kSize, '1') + "}")},
      {"white space", file_of("{" + std::string(kSize, ' ') + "x}")},
      {"many dimensions", file_of(R"({"a":{"shape":[)" + repeated("0,", kSize) + "0]}}")},
      {"many tensors", file_of(tensors + "}")},
      {"large names", file_of(names + "}"), kSize},
      {"many metadata",
       file_of(R"({"__metadata__":{)" + repeated(R"("a":"",)", kSize) + R"("a":""}})")},
  };
  CHECK(run({folder.write("f", file_of("{}"))}, kLimit).code == 0);
  for (const auto& [name, file, names_bytes] : cases) {
    CAPTURE(name);
    const Ending ending = run({folder.write("f", file)}, kLimit + names_bytes);
    CAPTURE(ending.err);
    CHECK(ending.code == 65);
    CHECK(ending.err.size() < 600);
  }
  // The limit takes effect, because the parsed content of this file exceeds it.
  if (kMemoryIsLimited) CHECK(run({folder.write("f", file_of(names + "}"))}, kLimit).code == 70);
}

TEST_CASE("A hostile index or configuration costs no more than its text and 16 MiB") {
  if (!is_built()) return;
  constexpr size_t kSize = 8'000'000;
  constexpr rlim_t kLimit = 16 << 20;
  const auto numbered = [](const std::string& value, size_t size) {
    std::string text;
    for (int i = 0; text.size() < size; ++i) text += "\"" + std::to_string(i) + "\":" + value + ",";
    return text + "\"last\":" + value;
  };
  struct Case {
    std::string name, index, config, expected;
  };
  const Case cases[] = {
      {"many tensors", R"({"weight_map":{)" + numbered("\"f\"", kSize) + "}}", "",
       "the index has more than 65536 tensors"},
      {"many foreign keys", R"({"x":{)" + numbered("0", kSize) + "}}", "", "more than 131072 keys"},
      {"a long name", R"({"weight_map":{")" + std::string(kSize, 'n') + R"(":"f"}})", "",
       "a string has more than 2097152 bytes"},
      {"deep", R"({"x":)" + std::string(kSize, '['), "", "deeper than 64"},
      {"a configuration of objects", "", "{" + numbered("{}", 1'000'000) + "}",
       "the JSON has more than 32768 values"},
      {"a large configuration", "", "{" + numbered("{}", kSize) + "}", "at most 1048576"},
  };
  for (const auto& [name, hostile_index, config, expected] : cases) {
    CAPTURE(name);
    const ScratchFolder folder;
    if (hostile_index.empty()) {
      write_zeros(folder / "model.safetensors", small_tensors({"x"}));
      folder.write("config.json", config);
    } else {
      folder.write("model.safetensors.index.json", hostile_index);
    }
    const Ending ending = run({folder.path()}, kLimit);
    CAPTURE(ending.err);
    CHECK(ending.code == 65);
    CHECK(ending.err.find(expected) != std::string::npos);
    CHECK(ending.err.size() < 600);
  }
}

}  // namespace
}  // namespace fsdp
