// Runs the program fsdp-ckpt as a user does, and fsdp-inspect on checkpoints.
#include "programs/support/ckpt.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "io/support/shard_files.h"
#include "support/source_tree.h"

namespace fsdp {
namespace {

constexpr const char* kFirstShard = "shard-00000-of-00002.safetensors";
constexpr const char* kSecondShard = "shard-00001-of-00002.safetensors";

void cut_file(const std::filesystem::path& path) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
}

TEST_CASE("fsdp-ckpt list shows the checkpoints of a run, newest first") {
  const ScratchFolder root;
  write_checkpoint(root, manifest_of_step(900));
  write_checkpoint(root, manifest_of_step(1000));
  const ProcessResult ending = run_ckpt({"list", root.path()});
  CHECK(ending.code == 0);
  CHECK(ending.err.empty());
  CHECK(ending.out ==
        "step  sequence  time                  ranks  strategy       size  state\n"
        "1000        10  2026-11-20T23:20:00Z      2  full-shard  9.8 KiB  whole\n"
        " 900         9  2026-11-19T23:20:00Z      2  full-shard  9.8 KiB  whole\n");
}

TEST_CASE("fsdp-ckpt list shows runs, damage and values that are not finite") {
  const ScratchFolder root;
  write_checkpoint(root, manifest_of_step(100, 'a'));
  CheckpointManifest manifest = manifest_of_step(200, 'b');
  manifest.finite = false;
  manifest.conditions.erase("strategy");
  write_checkpoint(root, manifest);
  std::filesystem::remove(write_checkpoint(root, manifest_of_step(300)) / kSecondShard);
  cut_file(write_checkpoint(root, manifest_of_step(400)) / "shard-00000-of-00002.sum");
  flip_byte(write_checkpoint(root, manifest_of_step(500)) / kManifestName, 30);
  std::filesystem::create_directory(root / "step-00000600");
  std::filesystem::create_directory(root / ".step-00000700.tmp.1");
  const ProcessResult ending = run_ckpt({"list", root.path()});
  CHECK(ending.code == 0);
  CHECK(ending.out ==
        "step  sequence  time                  ranks  strategy       size  state\n"
        "run bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\n"
        " 400         4  2026-11-14T23:20:00Z      2  full-shard  9.8 KiB  damaged: "
        "shard-00000-of-00002.sum has 31 bytes, expected 32\n"
        " 300         3  2026-11-13T23:20:00Z      2  full-shard  5.6 KiB  damaged: "
        "shard-00001-of-00002.safetensors is missing\n"
        " 200         2  2026-11-12T23:20:00Z      2  -           9.8 KiB  not finite\n"
        "run aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n"
        " 100         1  2026-11-11T23:20:00Z      2  full-shard  9.8 KiB  whole\n"
        "unknown run\n"
        " 600         -  -                         -  -               0 B  damaged: "
        "manifest.json is missing\n"
        " 500         -  -                         -  -           9.8 KiB  damaged: "
        "manifest.json is damaged: its text does not have the hash at its end\n");
}

TEST_CASE("docs/command-line.md shows what fsdp-ckpt prints") {
  const ScratchFolder root;
  write_checkpoint(root, manifest_of_step(100, 'a'));
  CheckpointManifest manifest = manifest_of_step(200);
  manifest.finite = false;
  write_checkpoint(root, manifest);
  std::filesystem::remove(write_checkpoint(root, manifest_of_step(300)) / kSecondShard);
  const std::string list = run_ckpt({"list", root.path()}).out;
  // Two checkpoints that differ in one element: 6 and 6.5.
  WholeCheckpoint checkpoint{.manifest = manifest_of_step(100), .bytes = {}};
  for (const ManifestTensor& tensor : checkpoint.manifest.tensors) {
    checkpoint.bytes.emplace_back(tensor.numel() * bits_of(tensor.dtype) / 8, 'x');
  }
  std::vector<float> values(24, 6);
  checkpoint.bytes[0] = elements(values);
  write_checkpoint(root / "one", checkpoint);
  values[5] = 6.5F;
  checkpoint.bytes[0] = elements(values);
  checkpoint.manifest.step = 400;
  write_checkpoint(root / "other", checkpoint);
  const std::string document = read_whole(source_file("docs/command-line.md"));
  for (const std::string& command :
       {"list checkpoints\n" + list,
        "diff --all checkpoints/step-00000100 checkpoints/step-00000400\n" +
            run_ckpt({"diff", "--all", root / "one", root / "other"}).out}) {
    CAPTURE(command);
    CHECK(document.find("```\n$ fsdp-ckpt " + command + "```\n") != document.npos);
  }
}

TEST_CASE("fsdp-ckpt verify compares every byte of a checkpoint") {
  const ScratchFolder root;
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(1000));
  CHECK(run_ckpt({"verify", folder}).out == "step-00001000: 2 shards, 9.8 KiB, whole\n");
  CHECK(run_ckpt({"verify", folder / ""}).out == "step-00001000: 2 shards, 9.8 KiB, whole\n");
  int64_t refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    CAPTURE(entry.path());
    for (const int64_t at : {int64_t{9}, static_cast<int64_t>(entry.file_size()) - 1}) {
      flip_byte(entry.path(), at);
      const ProcessResult ending = run_ckpt({"verify", folder});
      check_error(ending, 65,
                  "the checkpoint is damaged (" + folder.string() +
                      "); hint: resume from a checkpoint that is whole");
      const std::string name = entry.path().filename().string();
      CHECK(ending.out.starts_with("step-00001000: " + name + " is damaged: "));
      CHECK(ending.out.ends_with(" KiB, damaged\n"));
      flip_byte(entry.path(), at);
      ++refused;
    }
  }
  CHECK(refused == 12);
  CHECK(run_ckpt({"verify", folder}).code == 0);
}

TEST_CASE("fsdp-ckpt verify reports each finding of a checkpoint in a line") {
  const ScratchFolder root;
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(1000));
  cut_file(folder / kFirstShard);
  std::filesystem::rename(folder / kSecondShard, folder / "moved");
  std::filesystem::create_symlink("moved", folder / kSecondShard);
  cut_file(folder / kIntervalsName);
  const ProcessResult ending = run_ckpt({"verify", folder});
  CHECK(ending.code == 65);
  CHECK(without_root(ending.out, root) ==
        "step-00001000: intervals.safetensors is damaged: it has 207 bytes, expected 208 "
        "(ROOT/step-00001000/intervals.safetensors)\n"
        "step-00001000: shard-00000-of-00002.safetensors is damaged: it has 4135 bytes, expected "
        "4136 (ROOT/step-00001000/shard-00000-of-00002.safetensors)\n"
        "step-00001000: shard-00001-of-00002.safetensors is a link "
        "(ROOT/step-00001000/shard-00001-of-00002.safetensors)\n"
        "step-00001000: note: 'moved' is not part of the checkpoint (ROOT/step-00001000/moved)\n"
        "step-00001000: 2 shards, 9.8 KiB, damaged\n");
}

TEST_CASE("fsdp-ckpt verify names a missing file, and a file that is not part of the checkpoint") {
  const ScratchFolder root;
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(1000));
  std::ofstream(folder / "a\nnote") << "x";
  const ProcessResult noted = run_ckpt({"verify", folder});
  CHECK(noted.code == 0);
  CHECK(noted.err.empty());
  CHECK(without_root(noted.out, root) ==
        "step-00001000: note: 'a\\x0anote' is not part of the checkpoint "
        "(ROOT/step-00001000/a\\x0anote)\n"
        "step-00001000: 2 shards, 9.8 KiB, whole\n");
  std::filesystem::remove(folder / "a\nnote");
  std::filesystem::remove(folder / "shard-00001-of-00002.sum");
  const ProcessResult missing = run_ckpt({"verify", folder});
  CHECK(missing.code == 65);
  CHECK(missing.out.starts_with("step-00001000: shard-00001-of-00002.sum is missing ("));
  std::filesystem::remove(folder / kManifestName);
  const ProcessResult without = run_ckpt({"verify", folder});
  CHECK(without.code == 65);
  CHECK(without_root(without.out, root) ==
        "step-00001000: manifest.json is missing (ROOT/step-00001000/manifest.json)\n"
        "step-00001000: 8.4 KiB, damaged\n");
}

TEST_CASE("fsdp-ckpt verify compares the tensors of a shard with the intervals") {
  const ScratchFolder root;
  CheckpointManifest manifest = manifest_of_step(1000);
  const std::filesystem::path folder = write_checkpoint(root, manifest);
  const CheckpointManifest written = read_manifest(folder);
  const auto rewrite = [&](CheckpointManifest changed) {
    std::filesystem::remove(folder / kManifestName);
    std::filesystem::remove(folder / kIntervalsName);
    set_intervals_entry(changed);
    write_manifest(folder, changed);
    const ProcessResult ending = run_ckpt({"verify", folder});
    CHECK(ending.code == 65);
    return without_root(ending.out, root);
  };
  const std::string end = " (ROOT/step-00001000/shard-00001-of-00002.safetensors)\n";
  manifest = written;
  manifest.tensors[2].name = "optimizer/exp_avg/b";
  CHECK(rewrite(manifest).starts_with(
      "step-00001000: shard-00001-of-00002.safetensors does not have elements [0, 24) of "
      "'optimizer/exp_avg/b': the tensor is missing" +
      end));
  manifest = written;
  manifest.tensors[2].dtype = StoredDType::kI32;
  manifest.intervals[0].numel = 12;
  manifest.intervals[1] = {.tensor = 0, .file = 1, .begin = 12, .numel = 12};
  const std::string lines = rewrite(manifest);
  CHECK(lines.find("[12, 24) of 'model/weight/a': the tensor is F32 of shape [16], expected F32 "
                   "of shape [12]" +
                   end) != lines.npos);
  CHECK(lines.find("[0, 24) of 'optimizer/exp_avg/a': the tensor is F32 of shape [24], expected "
                   "I32 of shape [24]" +
                   end) != lines.npos);
}

TEST_CASE("fsdp-ckpt verify checks all checkpoints of a folder") {
  const ScratchFolder root;
  write_checkpoint(root, manifest_of_step(900));
  CheckpointManifest manifest = manifest_of_step(1000);
  manifest.finite = false;
  write_checkpoint(root, manifest);
  const std::string lines =
      "step-00001000: 2 shards, 9.8 KiB, whole, values are not finite\n"
      "step-00000900: 2 shards, 9.8 KiB, whole\n";
  const ProcessResult whole = run_ckpt({"verify", root.path()});
  CHECK(whole.code == 0);
  CHECK(whole.out == lines + "2 checkpoints: 2 whole, 0 damaged\n");
  std::filesystem::create_directory(root / "step-00001100");
  const ProcessResult damaged = run_ckpt({"verify", root.path()});
  check_error(damaged, 65, "1 of 3 checkpoints is damaged");
  CHECK(damaged.out.ends_with("step-00001100: 0 B, damaged\n" + lines +
                              "3 checkpoints: 2 whole, 1 damaged\n"));
}

TEST_CASE("fsdp-ckpt reports a file that cannot be read, and ends with 74") {
  if (::geteuid() == 0) return;  // root reads every file
  const ScratchFolder root;
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(1000));
  std::filesystem::permissions(folder / kFirstShard, std::filesystem::perms::none);
  const ProcessResult ending = run_ckpt({"verify", folder});
  check_error(ending, 74, "the checkpoint cannot be read (");
  CHECK(without_root(ending.out, root) ==
        "step-00001000: cannot read the file (ROOT/step-00001000/" + std::string(kFirstShard) +
            "); Permission denied\nstep-00001000: 2 shards, 9.8 KiB, unreadable\n");
  CHECK(run_ckpt({"list", root.path()})
            .out.ends_with(" 9.8 KiB  cannot read the file; Permission denied\n"));
}

TEST_CASE("fsdp-ckpt ends with 74 for a path that cannot be read, and with 64 for wrong usage") {
  const ScratchFolder root;
  check_error(run_ckpt({"list", root / "missing"}), 74, "No such file or directory");
  check_error(run_ckpt({"verify", root / "missing"}), 74, "No such file or directory");
  check_error(run_ckpt({"verify", root.write("file", "x")}), 74, "Not a directory");
  check_error(run_ckpt({"verify", root.path()}), 74, "there is no checkpoint (");
  CHECK(run_ckpt({"list", root.path()}).out == "no checkpoint in " + root.path().string() + "\n");
  const std::filesystem::path folder = write_checkpoint(root, manifest_of_step(1000));
  check_error(run_ckpt({"list", folder}), 64,
              "' is a checkpoint (command line); hint: pass the folder that contains it, or use "
              "inspect or verify");
  const std::string hint = "; hint: use fsdp-ckpt verify PATH";
  check_error(run_ckpt({"verify", "--fast", "--all=1", folder}), 64,
              "there are no flags --fast, --all" + hint);
  check_error(run_ckpt({"verify", "--hlep", folder}), 64,
              "there is no flag --hlep; hint: did you mean --help?");
  const std::string commands =
      "(command line); hint: use list, inspect, verify, diff, prune or export; fsdp-ckpt --help "
      "describes them";
  check_error(run_ckpt({}), 64, "no command is given " + commands);
  check_error(run_ckpt({"x"}), 64, "there is no command 'x' " + commands);
  check_error(run_ckpt({"verfiy", "a"}), 64,
              "there is no command 'verfiy' (command line); hint: did you mean verify?");
  check_error(run_ckpt({"--all", "diff", "a", "b"}), 64, "there is no flag --all; hint: use list,");
  check_error(run_ckpt({"--", "list", "a"}), 64, "A subcommand is required " + commands);
  check_error(run_ckpt({"verify"}), 64, "PATH is required (command line)" + hint);
  check_error(run_ckpt({"verify", ""}), 64, "a path is empty");
  check_error(run_ckpt({"list", "a", "b"}), 64,
              "not expected: b (command line); hint: use fsdp-ckpt list FOLDER");
  check_error(
      run_ckpt({"inspect", root.path()}), 74,
      "there is no checkpoint (" + root.path().string() + "); hint: pass the folder of one");
  check_error(run_ckpt({"diff", folder, root.path()}), 74, "there is no checkpoint (");
  check_error(run_ckpt({"export", root.path(), root / "out"}), 74, "there is no checkpoint (");
  for (const auto& arguments : {std::vector<std::string>{"--help"}, {"verify", "--help"}}) {
    const ProcessResult help = run_ckpt(arguments);
    CHECK(help.code == 0);
    CHECK(help.out.find("Exit codes: 0 done, whole or equal, 1 different (diff), 64") !=
          std::string::npos);
  }
}

TEST_CASE("fsdp-inspect shows the content of a checkpoint") {
  const ScratchFolder root;
  CheckpointManifest manifest = small_manifest();
  manifest.finite = false;
  const std::filesystem::path folder = write_checkpoint(root, manifest);
  const ProcessResult ending = run_process({program_path("fsdp-inspect"), folder});
  CHECK(ending.code == 0);
  CHECK(ending.err.empty());
  const std::string head =
      "ROOT/step-00001200\n"
      "step 1200, checkpoint 7 of run 0123456789abcdef0123456789abcdef\n"
      "saved 2026-11-26T23:20:00Z by 2 ranks, resumed from step 1000\n"
      "note: a value is not finite\n"
      "condition libtorch = '2.15.0'\n"
      "condition strategy = 'full-shard'\n"
      "object optimizer: AdamW\n"
      "  lr = 0.001\n"
      "  note = 'é \"quoted\" \\x0a'\n"
      "  step = 1200\n"
      "  worst = -inf\n"
      "object user: values\n"
      "file shard-00000-of-00002.safetensors: 4136 bytes, parts of 2 tensors\n"
      "file shard-00001-of-00002.safetensors: 4256 bytes, parts of 2 tensors\n"
      "file intervals.safetensors: 208 bytes\n"
      "tensor 'model/weight/tied' is 'model/weight/a'\n";
  CHECK(without_root(ending.out, root) == head +
                                              "name                 dtype  shape   bytes\n"
                                              "model/weight/a       F32    [4, 6]     96\n"
                                              "empty                F32    [0, 3]      0\n"
                                              "optimizer/exp_avg/a  F32    [24]       96\n"
                                              "scalar               I64    []          8\n"
                                              "4 tensors, 49 elements, 200 bytes: I64 1, F32 3\n");
  const ProcessResult summary = run_process({program_path("fsdp-inspect"), "--summary", folder});
  CHECK(without_root(summary.out, root)
            .find("  worst = -inf\nobject user: values\n3 files, 8.4 KiB\ntensor "
                  "'model/weight/tied' is "
                  "'model/weight/a'\n4 tensors, 49 elements, 200 bytes\nby type   F32") !=
        std::string::npos);
  CHECK(run_ckpt({"inspect", folder}).out == ending.out);
  CHECK(run_ckpt({"inspect", "--summary", folder}).out == summary.out);
  const ProcessResult shard = run_process({program_path("fsdp-inspect"), folder / kSecondShard});
  CHECK(shard.out.find("optimizer/exp_avg/a  F32    [24]      96\n") != std::string::npos);
  std::filesystem::rename(folder / kSecondShard, folder / "moved");
  const ProcessResult incomplete = run_ckpt({"inspect", folder});
  check_error(incomplete, 65, std::string(kSecondShard) + " is missing");
  CHECK(incomplete.out == ending.out);
  std::filesystem::remove(folder / kManifestName);
  check_error(run_process({program_path("fsdp-inspect"), folder}), 65, "manifest.json is missing");
  check_error(run_ckpt({"inspect", folder}), 65, "manifest.json is missing");
}

TEST_CASE("fsdp-inspect takes a folder with config.json for a model, whatever else it has") {
  const ScratchFolder root;
  root.write("manifest.json", "{}");
  root.write("config.json", "{}");
  check_error(run_process({program_path("fsdp-inspect"), root.path()}), 74, "model.safetensors");
}

}  // namespace
}  // namespace fsdp
