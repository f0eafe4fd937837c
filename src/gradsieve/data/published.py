"""Public data sets: the addresses of their files, and the SHA-256 of each.

The SHA-256 of the archives are those that several independent projects use. Those of the files in them were also
compared with the data itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Download:
    """One file on the web."""

    url: str
    sha256: str

    @property
    def name(self) -> str:
        return PurePosixPath(self.url).name

    @property
    def is_archive(self) -> bool:
        return self.name.endswith((".tar.gz", ".tgz"))


@dataclass(frozen=True)
class Published:
    """A data set: what to fetch, and the files that it consists of."""

    downloads: tuple[Download, ...]
    files: Mapping[str, str]  # SHA-256 of the uncompressed files, by name without .gz
    places: tuple[str, ...]  # folders that the files may be in; archives unpack to the first


TORONTO = "https://www.cs.toronto.edu/~kriz"
MNIST_MIRROR = "https://storage.googleapis.com/cvdf-datasets/mnist"

PUBLISHED: Mapping[str, Published] = {
    "cifar10": Published(
        downloads=(
            Download(
                f"{TORONTO}/cifar-10-binary.tar.gz", "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
            ),
        ),
        files={
            "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        },
        places=("cifar-10-batches-bin", ""),
    ),
    "cifar100": Published(
        downloads=(
            Download(
                f"{TORONTO}/cifar-100-binary.tar.gz", "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"
            ),
        ),
        files={
            "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
        },
        places=("cifar-100-binary", ""),
    ),
    "mnist": Published(
        downloads=(
            Download(
                f"{MNIST_MIRROR}/train-images-idx3-ubyte.gz",
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            Download(
                f"{MNIST_MIRROR}/train-labels-idx1-ubyte.gz",
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            Download(
                f"{MNIST_MIRROR}/t10k-images-idx3-ubyte.gz",
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            Download(
                f"{MNIST_MIRROR}/t10k-labels-idx1-ubyte.gz",
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
        files={
            "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
        },
        places=("mnist", "", "MNIST/raw"),
    ),
}
# Data sets that cannot be fetched, with what to do instead.
BY_HAND = {
    "celeba": "Its authors hand it out at https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, for research only: get "
    "img_align_celeba.zip, list_landmarks_align_celeba.txt and list_eval_partition.txt there, and unpack the images.",
    "celeba-features": "gradsieve reproduce table1 makes it from celeba.",
    "digits": "It comes with scikit-learn.",
    "landmarks": "It is drawn when it is asked for.",
    "table": "It is your own.",
}
